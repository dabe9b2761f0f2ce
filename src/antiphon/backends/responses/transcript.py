"""Items -> what a Responses server is sent as `input`: their own bytes, but for what a server cannot take.

System and developer messages stay items. Pure; it knows no request. Invariant: where a server has no quirk,
the bytes are exactly those that arrived, unknown types and fields included.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from antiphon.backends.interface import Segment
from antiphon.backends.responses.json_fields import is_told, read_fields
from antiphon.backends.responses.quirks import Quirks, find_quirks
from antiphon.context import Profile
from antiphon.protocol.content import OutputText, Refusal
from antiphon.protocol.items import Item, Message, Reasoning

_encode = msgspec.json.encode
_NO_TEXT = "A reasoning item without readable text was not sent: this model server takes no sealed reasoning."


def transcribe(items: Sequence[Item], profile: Profile) -> Segment:
    """Items to comma-joined JSON, without those of a type that this server is known to refuse."""
    quirks = find_quirks(profile.name)
    pieces: list[bytes] = []
    warnings: list[str] = []
    refusal = ""
    for item in items:
        if quirks.item_types is not None and item.type not in quirks.item_types:
            refusal = refusal or _tell_refused(item, quirks.item_types, profile)
            warnings.append(
                f"Items of type '{item.type}' are not taken by this model server and are not shown."
            )
            continue
        adapted = _adapt(item, quirks)
        if adapted is None:
            warnings.append(_NO_TEXT)
        else:
            pieces.append(adapted)
    return Segment(lead="", body=b",".join(pieces), warnings=tuple(dict.fromkeys(warnings)), refusal=refusal)


def _tell_refused(item: Item, item_types: Collection[str], profile: Profile) -> str:
    taken = ", ".join(sorted(item_types))
    return (
        f"Items of type '{item.type}' cannot be sent to a model of {profile.name} over its own Responses "
        f"interface, which takes: {taken}. Leave them out, or reach it by the dialect chat_completions."
    )


def _adapt(item: Item, quirks: Quirks) -> bytes | None:
    value = item.value
    if quirks.needs_reasoning_text and isinstance(value, Reasoning):
        return _spell_out_reasoning(item, value)
    if quirks.needs_plain_messages and isinstance(value, Message) and value.role == "assistant":
        return _spell_out_message(item, value)
    return item.raw


def _spell_out_reasoning(item: Item, value: Reasoning) -> bytes | None:
    """The summary stands for raw text where there is none; None where there is neither."""
    if value.content:
        return item.raw
    text = "\n\n".join(part.text for part in value.summary if part.text)
    if not text:
        return None
    fields: dict[str, Any] = dict(read_fields(item.raw))
    return _encode({**fields, "content": [{"type": "reasoning_text", "text": text}]})


def _spell_out_message(item: Item, value: Message) -> bytes:
    fields: dict[str, Any] = dict(read_fields(item.raw))
    content = value.content
    has_refusal = not isinstance(content, str) and any(isinstance(part, Refusal) for part in content)
    if is_told(fields.get("type")) and not has_refusal:
        return item.raw
    if isinstance(content, str):
        parts: list[Any] = [{"type": "output_text", "text": content}]
    elif has_refusal:
        parts = [{"type": "output_text", "text": _read_part(part)} for part in content]
    else:
        return _encode({**fields, "type": "message"})
    return _encode({**fields, "type": "message", "content": parts})


def _read_part(part: object) -> str:
    if isinstance(part, Refusal):
        return part.refusal
    return part.text if isinstance(part, OutputText) else ""
