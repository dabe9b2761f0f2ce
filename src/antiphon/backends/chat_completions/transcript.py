"""Items -> chat messages: pure, and stable.

The messages of a node depend on that node's items and the profile alone, so a later round's messages
begin with the bytes of the earlier ones and the backend's prompt cache stays warm.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.backends.chat_completions.decode import is_json_object
from antiphon.backends.interface import Segment
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

_encode = msgspec.json.Encoder().encode
_SYSTEM_ROLES = frozenset({"system", "developer"})


def transcribe(items: Sequence[Item], profile: Profile, *, at_start: bool) -> Segment:
    """The chat messages of some items, comma-joined; see `Segment`.

    [user "a", function_call, function_call_output] ->
    `{"role":"user",...},{"role":"assistant","tool_calls":[...]},{"role":"tool",...}`
    """
    lead, rest = _take_lead(items) if at_start else ([], items)
    writer = _Writer(profile)
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


class _Writer:
    """Collects messages; assistant items in a row become one message, results follow their calls."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        # A block is an assistant message with the results of its calls behind it. The first block takes
        # results of calls that an earlier node made.
        self._blocks: list[list[dict[str, Any]]] = [[]]
        self._owners: dict[str, list[dict[str, Any]]] = {}
        self._assistant: dict[str, Any] | None = None
        self.warnings: list[str] = []

    def finish(self) -> list[dict[str, Any]]:
        return [message for block in self._blocks for message in block]

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
            self._blocks.append([{"role": "user", "content": _read_content(message.content)}])
        elif self._profile.system_messages == "anywhere":
            self._blocks.append([{"role": "system", "content": _read_text(message.content)}])
        else:
            self._blocks.append([_mark(message.role, _read_text(message.content))])

    def _append_text(self, text: str) -> None:
        assistant = self._open_assistant()
        before = assistant.get("content")
        assistant["content"] = f"{before}\n\n{text}" if before else text

    def _write_call(self, call: FunctionCall) -> None:
        assistant = self._open_assistant()
        arguments = call.arguments
        if not is_json_object(arguments.encode()):
            # Servers parse the arguments to render their template and fail on what a model once got wrong.
            arguments = _encode({"invalid_arguments": arguments}).decode()
            self.warnings.append(
                f"The arguments of call {call.call_id} are no JSON object; they were wrapped."
            )
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
        content = _read_content(output.output)
        block.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self._assistant = None

    def _write_reasoning(self, reasoning: Reasoning) -> None:
        field = self._profile.reasoning_field
        text = _read_reasoning(reasoning)
        if not text:
            return
        if field == "none":
            self.warnings.append("Earlier reasoning is not sent back to this model.")
            return
        if self._assistant is not None and ("content" in self._assistant or "tool_calls" in self._assistant):
            # Thoughts open a generation: text or calls before them belong to the one before.
            self._assistant = None
        assistant = self._open_assistant()
        before = assistant.get(field)
        assistant[field] = f"{before}\n\n{text}" if before else text

    def _open_assistant(self) -> dict[str, Any]:
        if self._assistant is None:
            self._assistant = {"role": "assistant"}
            self._blocks.append([self._assistant])
        return self._assistant


def _read_text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part) for part in content)


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
    if not any(isinstance(part, InputImage) for part in content):
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
