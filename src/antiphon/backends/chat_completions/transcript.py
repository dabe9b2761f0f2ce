"""Items -> chat messages: pure, and stable.

The messages of a node depend on that node's items and the profile alone, so a later round's messages
begin with the bytes of the earlier ones and the backend's prompt cache stays warm.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from antiphon.backends.chat_completions.decode import is_json_object
from antiphon.backends.chat_completions.message_parts import (
    encode_image,
    encode_text,
    find_images,
    find_untold,
    read_content,
    read_reasoning,
    read_text,
)
from antiphon.backends.interface import NO_CALLS, Segment
from antiphon.context import (
    LoweredCall,
    LoweredMessage,
    LoweredOutput,
    Profile,
    lower_call,
    lower_message,
    lower_output,
)
from antiphon.context.lowering import mark_late
from antiphon.protocol.content import InputImage, Part
from antiphon.protocol.items import (
    AdditionalTools,
    ConfigurationUpdate,
    Item,
    McpApprovalResponse,
    McpListTools,
    Message,
    Reasoning,
    ToolSearchCall,
    ToolSearchOutput,
)

#: Said in place of a user message where a template demands one and the history has none.
CONTINUE_TEXT = "Continue."
#: Said in a tool result in the place of an image, which follows in a message of its own.
_IMAGE_BELOW = "[image: see below]"

_encode = msgspec.json.Encoder().encode
_SYSTEM_ROLES = frozenset({"system", "developer"})
#: Items that say nothing themselves: they bring tools or settings.
_SILENT = (AdditionalTools, ConfigurationUpdate, McpListTools)


def transcribe(
    items: Sequence[Item],
    profile: Profile,
    *,
    at_start: bool,
    open_calls: Mapping[str, str] = NO_CALLS,
    async_calls: Collection[str] = (),
) -> Segment:
    """The chat messages of some items, comma-joined; see `Segment` and `Backend.transcribe`.

    [user "a", function_call, function_call_output] ->
    `{"role":"user",...},{"role":"assistant","tool_calls":[...]},{"role":"tool",...}`
    """
    lead, rest = _take_lead(items) if at_start else ([], items)
    kind = _Writer if profile.tools == "native" else _PlainWriter
    writer = kind(profile, open_calls, async_calls)
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
        if isinstance(value, _SILENT):
            continue
        if not isinstance(value, Message) or value.role not in _SYSTEM_ROLES:
            return lead, items[position:]
        lead.append((value.role, read_text(value.content)))
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


#: The id of the call, the result's text, its images.
_PlainResult: TypeAlias = tuple[str, str, list[InputImage]]


class _Block:
    """A message; if it is an assistant's, with the results of its calls behind it, then their images."""

    __slots__ = ("images", "messages", "open_calls", "own_results", "results")

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.images: list[dict[str, Any]] = []
        #: Its calls that have no result so far.
        self.open_calls: set[str] = set()
        #: Results told in plain words: first those that came with their calls, then those of the client.
        self.own_results: list[_PlainResult] = []
        self.results: list[_PlainResult] = []


class _Writer:
    """Collects messages; assistant items in a row become one message, results follow their calls.

    One message, for templates that let roles alternate alone, and because nothing may stand between a
    call and its result. A call whose item holds its result (MCP, web search, the stand-in of an async call)
    ends its message: the model went on after the result, within the same response. Not so where a call beside it
    waits for the client: then the response ended, and what follows was said together with it.
    """

    def __init__(
        self, profile: Profile, _open_calls: Mapping[str, str], async_calls: Collection[str]
    ) -> None:
        self._profile = profile
        self._async_calls = set(async_calls)
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
        elif isinstance(value, Reasoning):
            self._write_reasoning(value)
        elif not self._write_lowered(item):
            self._leave_out(item)

    def _write_lowered(self, item: Item) -> bool:
        """Calls, results, and messages of other kinds; whether the item was any of these."""
        call, output = lower_call(item), lower_output(item)
        if call is not None:
            self._write_call(call)
            if call.is_async:
                self._async_calls.add(call.call_id)
            if output is not None:
                said = self._assistant
                self._write_output(output, came_with_call=True)
                if self._blocks[-1].open_calls:
                    self._assistant = said
            return True
        if output is not None:
            if output.call_id in self._async_calls:
                # Its call has its stand-in already, and what stands before it must stay as it is.
                self._write_marked(LoweredMessage(mark_late(output.call_id), output.content))
            else:
                self._write_output(output)
            return True
        message = lower_message(item)
        if message is not None:
            self._write_marked(message)
        return message is not None

    def _leave_out(self, item: Item) -> None:
        if isinstance(item.value, (*_SILENT, McpApprovalResponse)):
            return
        if isinstance(item.value, ToolSearchCall | ToolSearchOutput):
            self._warn("A search for tools that another server made is not shown.")
        else:
            self._warn(f"Items of type '{item.type}' cannot be told to this model and are not shown.")

    def _write_message(self, message: Message) -> None:
        if message.role == "assistant":
            self._append_text(read_text(message.content))
            return
        self._assistant = None
        self._note_parts(message.content)
        if message.role == "user":
            self._blocks.append(_Block({"role": "user", "content": read_content(message.content)}))
        elif self._profile.system_messages == "anywhere":
            self._blocks.append(_Block({"role": "system", "content": read_text(message.content)}))
        else:
            self._blocks.append(_Block(_mark(message.role, read_text(message.content))))

    def _write_marked(self, message: LoweredMessage) -> None:
        self._assistant = None
        self._note_parts(message.content)
        content = read_content(message.content)
        mark = f"[{message.mark}]\n"
        said = mark + content if isinstance(content, str) else [encode_text(mark.rstrip()), *content]
        self._blocks.append(_Block({"role": "user", "content": said}))

    def _append_text(self, text: str) -> None:
        _append(self._open_assistant(), "content", text)

    def _write_call(self, call: LoweredCall) -> None:
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
        self._note_call(call)

    def _note_call(self, call: LoweredCall) -> None:
        """Its result belongs behind the message that is open now."""
        block = self._owners[call.call_id] = self._blocks[-1]
        block.open_calls.add(call.call_id)

    def _find_owner(self, call_id: str) -> _Block:
        """Where a result belongs: the call has it now."""
        block = self._owners.get(call_id, self._blocks[0])
        block.open_calls.discard(call_id)
        return block

    def _write_output(self, output: LoweredOutput, *, came_with_call: bool = False) -> None:
        call_id, content = output.call_id, output.content
        block = self._find_owner(call_id)
        block.messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": read_text(content, _IMAGE_BELOW)}
        )
        self._note_parts(content)
        images = find_images(content)
        if images:
            # Tool messages take text alone, so a user message behind the last result shows the images.
            said = encode_text(f"[image from the result of call {call_id}]")
            block.images.append({"role": "user", "content": [said, *map(encode_image, images)]})
        self._assistant = None

    def _write_reasoning(self, reasoning: Reasoning) -> None:
        field = self._profile.reasoning_field
        text = read_reasoning(reasoning)
        if not text:
            if reasoning.encrypted_content is not None:
                self._warn("Reasoning that another server sealed is not shown to this model.")
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

    def _note_parts(self, content: str | Sequence[Part]) -> None:
        """Chat Completions knows the details `low` and `high`; `auto` is to leave the choice to the server."""
        if any(image.detail == "original" for image in find_images(content)):
            self._warn("The image detail 'original' cannot be told to this server, which chooses its own.")
        for part_type in find_untold(content):
            self._warn(
                f"Parts of type '{part_type}' cannot be told to this model; their names stand in place."
            )

    def _warn(self, text: str) -> None:
        self._warnings[text] = None


class _PlainWriter(_Writer):
    """For models that were never taught tool messages: calls and results are said in plain words.

    assistant `I called f with {"a":1}.`, user `Result of f: ...`: small models use such a result, and repeat
    the call where it comes in tool messages (measured).
    """

    def __init__(self, profile: Profile, open_calls: Mapping[str, str], async_calls: Collection[str]) -> None:
        super().__init__(profile, open_calls, async_calls)
        self._names = dict(open_calls)
        self._places = {call_id: place for place, call_id in enumerate(open_calls)}

    def finish(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for block in self._blocks:
            messages += map(_join_pieces, block.messages)
            # The client's come with a later node, if its history is kept here: in a message of their own.
            messages += [
                self._tell_results(results) for results in (block.own_results, block.results) if results
            ]
        return messages

    def _write_call(self, call: LoweredCall) -> None:
        self._append_text(f"I called {call.name} with {call.arguments.strip() or '{}'}.")
        self._names[call.call_id] = call.name
        self._places[call.call_id] = len(self._places)
        self._note_call(call)

    def _write_output(self, output: LoweredOutput, *, came_with_call: bool = False) -> None:
        self._note_parts(output.content)
        images = find_images(output.content)
        block = self._find_owner(output.call_id)
        results = block.own_results if came_with_call else block.results
        results.append((output.call_id, read_text(output.content, _IMAGE_BELOW), images))
        self._assistant = None

    def _tell_results(self, given: list[_PlainResult]) -> dict[str, Any]:
        """One user message, the results in the order of their calls."""
        last = len(self._places)
        results = sorted(given, key=lambda result: self._places.get(result[0], last))
        told = "\n\n".join(
            f"Result of {self._names.get(call_id, call_id)}: {text or '(empty)'}"
            for call_id, text, _ in results
        )
        images = [image for _, _, images in results for image in images]
        if not images:
            return {"role": "user", "content": told}
        return {"role": "user", "content": [encode_text(told), *map(encode_image, images)]}


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
