"""Items in words, for whoever summarises them: what a message says, what a call asks for, what a result holds.

One item at a time; it knows nothing of the items around it. Invariants: the same item always gives the same words,
and no image or sealed content ever becomes text.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from antiphon.context.lowering import Content, lower_call, lower_message, lower_output
from antiphon.protocol.content import InputFile, InputImage, InputText, OutputText, Refusal
from antiphon.protocol.items import (
    AgentMessage,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    is_call,
    is_call_output,
)

#: What stands in a text for something that is no text.
IMAGE_NOTE: Final = "[image]"
#: Images in these forms are understood by every model that sees.
_SHOWN_IMAGE: Final = re.compile(r"data:image/(?:jpeg|jpg|png|webp);base64,", re.IGNORECASE)
#: Fields of an item without words of its own that say nothing to a reader.
_SILENT: Final = frozenset(
    {"id", "type", "status", "created_by", "encrypted_content", "caller", "fingerprint"}
)
#: Runs of characters in such an item that hold a picture or sealed state.
_OPAQUE: Final = re.compile(r'data:[^"\s]{200,}|(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{1000,}')

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def tell_item(item: Item) -> str:
    """An item as a line or more of a transcript: `user: Fix the test.`, `assistant calls exec: {"cmd":"ls"}`."""
    value = item.value
    if isinstance(value, Message):
        return f"{value.role}: {tell_message(value)}"
    if isinstance(value, Reasoning):
        return f"assistant thinks: {_tell_reasoning(value)}"
    if is_call_output(item):
        return f"result: {tell_result(item)}"
    called = tell_call(item)
    if called is not None:
        name, arguments = called
        told = f"assistant calls {name}: {arguments}"
        result = None if is_call(item) else lower_output(item)
        return f"{told}\nresult: {_tell_content(result.content)}" if result is not None else told
    message = lower_message(item)
    if message is not None:
        return f"{message.mark}: {_tell_content(message.content)}"
    return f"{item.type}: {_tell_fields(item)}"


def tell_message(message: Message) -> str:
    """The text of a message, with a note where an image or a file stands."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_tell_part(part) for part in message.content)


def tell_call(item: Item) -> tuple[str, str] | None:
    """The name and the arguments of the call that an item holds, raw input as it is; None where it holds none."""
    call = lower_call(item)
    if call is not None:
        raw = item.value.input if isinstance(item.value, CustomToolCall) else call.arguments
        return call.name, raw
    return (item.type.removesuffix("_call"), _tell_fields(item)) if is_call(item) else None


def tell_result(item: Item) -> str:
    """The text of the result that an item holds, with notes for its images; empty where it holds none."""
    output = lower_output(item)
    if output is not None:
        return _tell_content(output.content)
    if isinstance(item.value, ComputerCallOutput):
        return IMAGE_NOTE
    return _tell_fields(item) if is_call_output(item) else ""


def list_images(item: Item) -> tuple[tuple[InputImage, ...], int]:
    """The images of an item that a model can be shown, and how many others it has."""
    urls = _list_image_urls(item)
    shown = tuple(InputImage(image_url=url) for url in urls if url is not None and _SHOWN_IMAGE.match(url))
    return shown, len(urls) - len(shown)


def _list_image_urls(item: Item) -> list[str | None]:
    value = item.value
    if isinstance(value, ComputerCallOutput):
        return [value.output.image_url]
    if isinstance(value, AgentMessage):
        parts: Sequence[Any] = value.content if isinstance(value.content, list) else ()
        return [part.get("image_url") for part in parts if part.get("type") == "input_image"]
    held: Any = None
    if isinstance(value, Message):
        held = value.content
    elif isinstance(value, FunctionCallOutput | CustomToolCallOutput):
        held = value.output
    return [part.image_url for part in held if isinstance(part, InputImage)] if isinstance(held, list) else []


def _tell_reasoning(value: Reasoning) -> str:
    told = "\n".join(part.text for part in value.summary) or "\n".join(
        part.text for part in value.content or ()
    )
    return told or "[sealed]"


def _tell_content(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(_tell_part(part) for part in content)


def _tell_part(part: Any) -> str:
    if isinstance(part, InputText | OutputText):
        return part.text
    if isinstance(part, Refusal):
        return part.refusal
    if isinstance(part, InputImage):
        return IMAGE_NOTE
    if isinstance(part, InputFile):
        return f"[file {part.filename}]" if part.filename else "[file]"
    return f"[{type(part).__struct_config__.tag}]" if isinstance(part, msgspec.Struct) else "[?]"


def _tell_fields(item: Item) -> str:
    """What an item that has no words of its own says: its fields as JSON, without what is opaque in them."""
    try:
        fields = _decode(item.raw)
    except (msgspec.MsgspecError, RecursionError):
        return "[unreadable]"
    if not isinstance(fields, dict):
        return "[unreadable]"
    told = {name: field for name, field in fields.items() if name not in _SILENT and field is not None}
    return _OPAQUE.sub(lambda run: f"[{len(run[0])} characters]", _encode(told).decode())
