"""Items -> chat messages: pure, and stable.

The messages of a node depend on that node's items and the profile alone, so a later round's messages
begin with the bytes of the earlier ones and the backend's prompt cache stays warm.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.backends.chat_completions.decode import is_json_object
from antiphon.backends.interface import NO_CALLS, Segment
from antiphon.context import Profile
from antiphon.protocol.content import (
    InputImage,
    InputText,
    OutputText,
    Part,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antiphon.protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning

#: Said in place of a user message where a template demands one and the history has none.
CONTINUE_TEXT = "Continue."
#: Said in a tool result in the place of an image, which follows in a message of its own.
_IMAGE_BELOW = "[image: see below]"

_encode = msgspec.json.Encoder().encode
_SYSTEM_ROLES = frozenset({"system", "developer"})


def transcribe(
    items: Sequence[Item],
    profile: Profile,
    *,
    at_start: bool,
    open_calls: Mapping[str, str] = NO_CALLS,
) -> Segment:
    """The chat messages of some items, comma-joined; see `Segment` and `Backend.transcribe`.

    [user "a", function_call, function_call_output] ->
    `{"role":"user",...},{"role":"assistant","tool_calls":[...]},{"role":"tool",...}`
    """
    lead, rest = _take_lead(items) if at_start else ([], items)
    writer = _Writer(profile) if profile.tools == "native" else _PlainWriter(profile, open_calls)
    for item in rest:
        writer.write(item)
    messages = writer.finish()
    if at_start and not any(message["role"] == "user" for message in messages):
        lead, messages = _add_user_message(lead, messages)
    body = b",".join([_encode(message) for message in messages])
    return Segment(lead="\n\n".join(text for _, text in lead), body=body, warnings=tuple(writer.warnings))


def encode_system(text: str) -> bytes:
    """The one system message at the head of the transcript."""
    return _encode({"role": "system", "content": text})


def _take_lead(items: Sequence[Item]) -> tuple[list[tuple[str, str]], Sequence[Item]]:
    lead: list[tuple[str, str]] = []
    for position, item in enumerate(items):
        value = item.value
        if not isinstance(value, Message) or value.role not in _SYSTEM_ROLES:
            return lead, items[position:]
        lead.append((value.role, _read_text(value.content)))
    return lead, ()


def _add_user_message(
    lead: list[tuple[str, str]], messages: list[dict[str, Any]]
) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    """Many templates refuse a prompt without a user message, so there is always one."""
    if not messages and lead:
        role, text = lead[-1]
        return lead[:-1], [_mark(role, text)]
    said = {"role": "user", "content": CONTINUE_TEXT}
    if messages and messages[-1]["role"] == "assistant":
        return lead, [*messages, said]
    return lead, [said, *messages]


def _mark(role: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": f"[{role} message]\n{text}"}


class _Block:
    """A message; if it is an assistant's, with the results of its calls behind it, then their images."""

    __slots__ = ("images", "messages", "results")

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.images: list[dict[str, Any]] = []
        #: Results told in plain words: id of the call, text, images.
        self.results: list[tuple[str, str, list[InputImage]]] = []


class _Writer:
    """Collects messages; assistant items in a row become one message, results follow their calls.

    One message, for templates that let roles alternate alone, and because nothing may stand between a
    call and its result.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        # The first block takes the results of calls that an earlier node made.
        self._blocks = [_Block()]
        self._owners: dict[str, _Block] = {}
        self._assistant: dict[str, Any] | None = None
        # A dictionary for its order: each warning is given once.
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> list[str]:
        return list(self._warnings)

    def finish(self) -> list[dict[str, Any]]:
        return [
            _join_pieces(message) for block in self._blocks for message in (*block.messages, *block.images)
        ]

    def write(self, item: Item) -> None:
        value = item.value
        if isinstance(value, Message):
            self._write_message(value)
        elif isinstance(value, FunctionCall):
            self._write_call(value)
        elif isinstance(value, FunctionCallOutput):
            self._write_output(value)
        elif isinstance(value, Reasoning):
            self._write_reasoning(value)
        else:
            raise TypeError(f"item type '{item.type}' has no chat message")

    def _write_message(self, message: Message) -> None:
        if message.role == "assistant":
            self._append_text(_read_text(message.content))
            return
        self._assistant = None
        if message.role == "user":
            self._note_details(message.content)
            self._blocks.append(_Block({"role": "user", "content": _read_content(message.content)}))
        elif self._profile.system_messages == "anywhere":
            self._blocks.append(_Block({"role": "system", "content": _read_text(message.content)}))
        else:
            self._blocks.append(_Block(_mark(message.role, _read_text(message.content))))

    def _append_text(self, text: str) -> None:
        _append(self._open_assistant(), "content", text)

    def _write_call(self, call: FunctionCall) -> None:
        assistant = self._open_assistant()
        arguments = call.arguments if call.arguments.strip() else "{}"
        if not is_json_object(arguments.encode()):
            # Servers parse the arguments to render their template and fail on what a model once got wrong.
            arguments = _encode({"invalid_arguments": arguments}).decode()
            self._warn(f"The arguments of call {call.call_id} are no JSON object; they were wrapped.")
        assistant.setdefault("tool_calls", []).append(
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments},
            }
        )
        self._owners[call.call_id] = self._blocks[-1]

    def _write_output(self, output: FunctionCallOutput) -> None:
        call_id = output.call_id or ""
        block = self._owners.get(call_id, self._blocks[0])
        block.messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": _read_text(output.output, _IMAGE_BELOW)}
        )
        self._note_details(output.output)
        images = [] if isinstance(output.output, str) else _find_images(output.output)
        if images:
            # Tool messages take text alone, so a user message behind the last result shows the images.
            said = {"type": "text", "text": f"[image from the result of call {call_id}]"}
            block.images.append({"role": "user", "content": [said, *map(_image_part, images)]})
        self._assistant = None

    def _write_reasoning(self, reasoning: Reasoning) -> None:
        field = self._profile.reasoning_field
        text = _read_reasoning(reasoning)
        if not text:
            return
        if field == "none":
            self._warn("Earlier reasoning is not sent back to this model.")
            return
        _append(self._open_assistant(), field, text)

    def _open_assistant(self) -> dict[str, Any]:
        if self._assistant is None:
            # Templates and servers want the key even where a message only calls or only thinks.
            self._assistant = {"role": "assistant", "content": ""}
            self._blocks.append(_Block(self._assistant))
        return self._assistant

    def _note_details(self, content: str | Sequence[Part]) -> None:
        """Chat Completions knows the details `low` and `high`; `auto` is to leave the choice to the server."""
        if not isinstance(content, str) and any(
            image.detail == "original" for image in _find_images(content)
        ):
            self._warn("The image detail 'original' cannot be told to this server, which chooses its own.")

    def _warn(self, text: str) -> None:
        self._warnings[text] = None


class _PlainWriter(_Writer):
    """For models that were never taught tool messages: calls and results are said in plain words.

    assistant `I called f with {"a":1}.`, user `Result of f: ...`: small models use such a result, and repeat
    the call where it comes in tool messages (measured).
    """

    def __init__(self, profile: Profile, open_calls: Mapping[str, str]) -> None:
        super().__init__(profile)
        self._names = dict(open_calls)
        self._places = {call_id: place for place, call_id in enumerate(open_calls)}

    def finish(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for block in self._blocks:
            messages += map(_join_pieces, block.messages)
            if block.results:
                messages.append(self._tell_results(block))
        return messages

    def _write_call(self, call: FunctionCall) -> None:
        self._append_text(f"I called {call.name} with {call.arguments.strip() or '{}'}.")
        self._names[call.call_id] = call.name
        self._places[call.call_id] = len(self._places)
        self._owners[call.call_id] = self._blocks[-1]

    def _write_output(self, output: FunctionCallOutput) -> None:
        call_id = output.call_id or ""
        self._note_details(output.output)
        images = [] if isinstance(output.output, str) else _find_images(output.output)
        block = self._owners.get(call_id, self._blocks[0])
        block.results.append((call_id, _read_text(output.output, _IMAGE_BELOW), images))
        self._assistant = None

    def _tell_results(self, block: _Block) -> dict[str, Any]:
        """One user message, the results in the order of their calls."""
        last = len(self._places)
        results = sorted(block.results, key=lambda result: self._places.get(result[0], last))
        told = "\n\n".join(
            f"Result of {self._names.get(call_id, call_id)}: {text or '(empty)'}"
            for call_id, text, _ in results
        )
        images = [image for _, _, images in results for image in images]
        if not images:
            return {"role": "user", "content": told}
        return {"role": "user", "content": [{"type": "text", "text": told}, *map(_image_part, images)]}


class _Pieces(list[str]):
    """A text that grows: joined once, at the end, since a run of items may be very long."""


def _append(message: dict[str, Any], field: str, text: str) -> None:
    before = message.get(field)
    if isinstance(before, _Pieces) and (len(before) > 1 or before[0]):
        before.append(text)
    else:
        message[field] = _Pieces([text])


def _join_pieces(message: dict[str, Any]) -> dict[str, Any]:
    for field, value in message.items():
        if isinstance(value, _Pieces):
            message[field] = "\n\n".join(value)
    return message


def _find_images(content: Sequence[Part]) -> list[InputImage]:
    return [part for part in content if isinstance(part, InputImage)]


def _read_text(content: str | Sequence[Part], image_text: str = "") -> str:
    """The text of some parts, a line each; `image_text` stands for an image."""
    if isinstance(content, str):
        return content
    return "\n".join(image_text if isinstance(part, InputImage) else _part_text(part) for part in content)


def _part_text(part: Part) -> str:
    if isinstance(part, InputText | OutputText | SummaryText | ReasoningText):
        return part.text
    if isinstance(part, Refusal):
        return part.refusal
    raise TypeError(f"content part '{type(part).__name__}' has no text")


def _read_content(content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
    """Text as one string, which every template takes; a list of parts only where there are images."""
    if isinstance(content, str):
        return content
    if not _find_images(content):
        return _read_text(content)
    return [_image_part(part) if isinstance(part, InputImage) else _text_part(part) for part in content]


def _text_part(part: Part) -> dict[str, Any]:
    return {"type": "text", "text": _part_text(part)}


def _image_part(part: InputImage) -> dict[str, Any]:
    image: dict[str, Any] = {"url": part.image_url}
    if part.detail in ("low", "high"):
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


def _read_reasoning(reasoning: Reasoning) -> str:
    parts: Sequence[Part] = reasoning.content or reasoning.summary
    return "\n\n".join(_part_text(part) for part in parts)
