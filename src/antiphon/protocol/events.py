"""The events of a Responses stream as typed structs, and their JSON.

The fields are those of the API, `type` is the tag. Payloads that are already bytes (a response, an item,
a part) stay bytes, so nothing is encoded twice. It knows no framing (see `sse`) and no order (see
`lifecycle`). Invariant: what `encode_event` writes, `decode_event` reads back as an equal struct.
"""

from typing import Any, Final, TypeAlias, cast, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from antiphon.protocol.errors import ErrorObject

#: Stands for a number that the sender left out: a sequence number or an index.
UNTOLD = -1

#: An optional text: absent, null or there.
OptionalText: TypeAlias = str | UnsetType | None

EMPTY_LIST = Raw(b"[]")


class EventDecodeError(ValueError):
    """This is not the JSON of an event: it is no object, or it has no `type`."""


class Event(msgspec.Struct, tag_field="type", gc=False):
    """Anything that a Responses server sends in a stream."""

    sequence_number: int

    @property
    def type(self) -> str:
        """The event's name on the wire."""
        return str(self.__struct_config__.tag)


class UnknownEvent(Event, tag=False, kw_only=True, gc=False):
    """An event that we have no struct for, or whose fields do not fit it (then `problem` says why)."""

    type: str
    raw: bytes
    problem: str = ""
    sequence_number: int = UNTOLD


class ErrorEvent(Event, tag="error", gc=False):
    """Something failed; in our streams `response.failed` follows."""

    error: ErrorObject


# The response as a whole.


class ResponseEvent(Event, gc=False):
    """An event that carries the response object."""

    response: Raw


class ResponseCreated(ResponseEvent, tag="response.created", gc=False):
    """The response exists."""


class ResponseQueued(ResponseEvent, tag="response.queued", gc=False):
    """The response waits for its turn."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress", gc=False):
    """The response is being worked on; repeated, it keeps the connection alive."""


class ResponseCompleted(ResponseEvent, tag="response.completed", gc=False):
    """Terminal: it ended by itself."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete", gc=False):
    """Terminal: it was cut short."""


class ResponseFailed(ResponseEvent, tag="response.failed", gc=False):
    """Terminal: it broke off."""


# Items and parts.


class OutputItemAdded(Event, tag="response.output_item.added", gc=False):
    """An output item begins."""

    output_index: int
    item: Raw


class OutputItemDone(Event, tag="response.output_item.done", gc=False):
    """An output item is finished."""

    output_index: int
    item: Raw


class ItemEvent(Event, gc=False):
    """An event inside an output item."""

    item_id: str
    output_index: int


class DeltaEvent(ItemEvent, gc=False):
    """A piece of text of an output item."""

    delta: str
    obfuscation: str | UnsetType = UNSET


class ContentPartAdded(ItemEvent, tag="response.content_part.added", gc=False):
    """A content part begins."""

    content_index: int
    part: Raw


class ContentPartDone(ItemEvent, tag="response.content_part.done", gc=False):
    """A content part is finished."""

    content_index: int
    part: Raw


# Text and refusal.


class OutputTextDelta(ItemEvent, tag="response.output_text.delta", gc=False):
    """A piece of visible text."""

    content_index: int
    delta: str
    logprobs: Raw = EMPTY_LIST
    obfuscation: str | UnsetType = UNSET


class OutputTextDone(ItemEvent, tag="response.output_text.done", gc=False):
    """The whole visible text of a part."""

    content_index: int
    text: str
    logprobs: Raw = EMPTY_LIST


class OutputTextAnnotationAdded(ItemEvent, tag="response.output_text.annotation.added", gc=False):
    """A citation or a file path in the text."""

    content_index: int
    annotation_index: int
    annotation: Raw | UnsetType = UNSET


class RefusalDelta(ItemEvent, tag="response.refusal.delta", gc=False):
    """A piece of a refusal."""

    content_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class RefusalDone(ItemEvent, tag="response.refusal.done", gc=False):
    """The whole refusal."""

    content_index: int
    refusal: str


# Reasoning.


class ReasoningSummaryPartAdded(ItemEvent, tag="response.reasoning_summary_part.added", gc=False):
    """A part of the reasoning summary begins."""

    summary_index: int
    part: Raw


class ReasoningSummaryPartDone(ItemEvent, tag="response.reasoning_summary_part.done", gc=False):
    """A part of the reasoning summary is finished; `status` is there only when it is incomplete."""

    summary_index: int
    part: Raw
    status: OptionalText = UNSET


class ReasoningSummaryTextDelta(ItemEvent, tag="response.reasoning_summary_text.delta", gc=False):
    """A piece of the reasoning summary."""

    summary_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningSummaryTextDone(ItemEvent, tag="response.reasoning_summary_text.done", gc=False):
    """The whole text of a summary part."""

    summary_index: int
    text: str


class ReasoningTextDelta(ItemEvent, tag="response.reasoning_text.delta", gc=False):
    """A piece of raw reasoning."""

    content_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningTextDone(ItemEvent, tag="response.reasoning_text.done", gc=False):
    """The whole raw reasoning of a part."""

    content_index: int
    text: str


# Calls that the client carries out.


class FunctionCallArgumentsDelta(DeltaEvent, tag="response.function_call_arguments.delta", gc=False):
    """A piece of a function call's arguments."""


class FunctionCallArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", gc=False):
    """The whole arguments of a function call."""

    arguments: str


class CustomToolCallInputDelta(DeltaEvent, tag="response.custom_tool_call_input.delta", gc=False):
    """A piece of a custom tool call's input."""


class CustomToolCallInputDone(ItemEvent, tag="response.custom_tool_call_input.done", gc=False):
    """The whole input of a custom tool call."""

    input: str


class ShellCallCommandAdded(Event, tag="response.shell_call_command.added", gc=False):
    """A shell command begins."""

    output_index: int
    command_index: int
    command: str


class ShellCallCommandDelta(Event, tag="response.shell_call_command.delta", gc=False):
    """A piece of a shell command."""

    output_index: int
    command_index: int
    delta: str
    obfuscation: str | UnsetType = UNSET


class ShellCallCommandDone(Event, tag="response.shell_call_command.done", gc=False):
    """The whole shell command."""

    output_index: int
    command_index: int
    command: str


class ShellCallOutputContentDelta(ItemEvent, tag="response.shell_call_output_content.delta", gc=False):
    """A piece of a shell command's output; `delta` is an object of stdout and stderr."""

    command_index: int
    delta: Raw
    obfuscation: str | UnsetType = UNSET


class ShellCallOutputContentDone(ItemEvent, tag="response.shell_call_output_content.done", gc=False):
    """The whole output of a shell command; `output` is a list."""

    command_index: int
    output: Raw


# Calls that the server carries out.


class McpListToolsInProgress(ItemEvent, tag="response.mcp_list_tools.in_progress", gc=False):
    """The tools of an MCP server are being listed."""


class McpListToolsCompleted(ItemEvent, tag="response.mcp_list_tools.completed", gc=False):
    """The tools of an MCP server are known."""


class McpListToolsFailed(ItemEvent, tag="response.mcp_list_tools.failed", gc=False):
    """The tools of an MCP server could not be listed."""


class McpCallInProgress(ItemEvent, tag="response.mcp_call.in_progress", gc=False):
    """An MCP call begins."""


class McpCallArgumentsDelta(DeltaEvent, tag="response.mcp_call_arguments.delta", gc=False):
    """A piece of an MCP call's arguments."""


class McpCallArgumentsDone(ItemEvent, tag="response.mcp_call_arguments.done", gc=False):
    """The whole arguments of an MCP call."""

    arguments: str


class McpCallCompleted(ItemEvent, tag="response.mcp_call.completed", gc=False):
    """An MCP call succeeded."""


class McpCallFailed(ItemEvent, tag="response.mcp_call.failed", gc=False):
    """An MCP call failed."""


class WebSearchCallInProgress(ItemEvent, tag="response.web_search_call.in_progress", gc=False):
    """A web search begins."""


class WebSearchCallSearching(ItemEvent, tag="response.web_search_call.searching", gc=False):
    """A web search is running."""


class WebSearchCallCompleted(ItemEvent, tag="response.web_search_call.completed", gc=False):
    """A web search ended."""


class FileSearchCallInProgress(ItemEvent, tag="response.file_search_call.in_progress", gc=False):
    """A file search begins."""


class FileSearchCallSearching(ItemEvent, tag="response.file_search_call.searching", gc=False):
    """A file search is running."""


class FileSearchCallCompleted(ItemEvent, tag="response.file_search_call.completed", gc=False):
    """A file search ended."""


class CodeInterpreterCallInProgress(ItemEvent, tag="response.code_interpreter_call.in_progress", gc=False):
    """A code interpreter call begins."""


class CodeInterpreterCallCodeDelta(DeltaEvent, tag="response.code_interpreter_call_code.delta", gc=False):
    """A piece of the code to run."""


class CodeInterpreterCallCodeDone(ItemEvent, tag="response.code_interpreter_call_code.done", gc=False):
    """The whole code to run."""

    code: str


class CodeInterpreterCallInterpreting(ItemEvent, tag="response.code_interpreter_call.interpreting", gc=False):
    """The code is running."""


class CodeInterpreterCallCompleted(ItemEvent, tag="response.code_interpreter_call.completed", gc=False):
    """The code has run."""


class ImageGenerationCallInProgress(ItemEvent, tag="response.image_generation_call.in_progress", gc=False):
    """An image generation begins."""


class ImageGenerationCallGenerating(ItemEvent, tag="response.image_generation_call.generating", gc=False):
    """The image is being made."""


class ImageGenerationCallPartialImage(
    ItemEvent, tag="response.image_generation_call.partial_image", gc=False
):
    """A preview of the image."""

    partial_image_index: int
    partial_image_b64: str
    background: OptionalText = UNSET
    output_format: OptionalText = UNSET
    quality: OptionalText = UNSET
    size: OptionalText = UNSET


class ImageGenerationCallCompleted(ItemEvent, tag="response.image_generation_call.completed", gc=False):
    """The image is made."""


# Compaction, audio, steering.


class CompactionCompacting(ItemEvent, tag="response.compaction.compacting", gc=False):
    """A compaction that the client asked for is still running."""


class AudioDelta(Event, tag="response.audio.delta", gc=False):
    """A piece of audio, in base64."""

    delta: str
    obfuscation: str | UnsetType = UNSET


class AudioDone(Event, tag="response.audio.done", gc=False):
    """The audio is finished."""


class AudioTranscriptDelta(Event, tag="response.audio.transcript.delta", gc=False):
    """A piece of the transcript of the audio."""

    delta: str
    obfuscation: str | UnsetType = UNSET


class AudioTranscriptDone(Event, tag="response.audio.transcript.done", gc=False):
    """The transcript of the audio is finished."""


class Steer(Event, tag="response.steer", kw_only=True, omit_defaults=True, gc=False):
    """Sent by a client over a WebSocket: new input for a running response. It has no sequence number."""

    previous_response_id: str
    input: Raw
    sequence_number: int = UNTOLD


class SteerAccepted(Event, tag="response.steer.accepted", gc=False):
    """The new input was taken."""

    steer: Raw
    stream_id: OptionalText = UNSET


class SteerPending(Event, tag="response.steer.pending", gc=False):
    """The new input waits for input that is required first."""

    reason: str
    required_input: Raw
    steer: Raw
    stream_id: OptionalText = UNSET


class SteerFailed(Event, tag="response.steer.failed", gc=False):
    """The new input was not taken."""

    error: Raw
    steer: Raw
    stream_id: OptionalText = UNSET


#: Every event that we know, the client's `response.steer` included.
KnownEvent: TypeAlias = (
    ErrorEvent
    | ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | OutputTextAnnotationAdded
    | RefusalDelta
    | RefusalDone
    | ReasoningSummaryPartAdded
    | ReasoningSummaryPartDone
    | ReasoningSummaryTextDelta
    | ReasoningSummaryTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | CustomToolCallInputDelta
    | CustomToolCallInputDone
    | ShellCallCommandAdded
    | ShellCallCommandDelta
    | ShellCallCommandDone
    | ShellCallOutputContentDelta
    | ShellCallOutputContentDone
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | WebSearchCallInProgress
    | WebSearchCallSearching
    | WebSearchCallCompleted
    | FileSearchCallInProgress
    | FileSearchCallSearching
    | FileSearchCallCompleted
    | CodeInterpreterCallInProgress
    | CodeInterpreterCallCodeDelta
    | CodeInterpreterCallCodeDone
    | CodeInterpreterCallInterpreting
    | CodeInterpreterCallCompleted
    | ImageGenerationCallInProgress
    | ImageGenerationCallGenerating
    | ImageGenerationCallPartialImage
    | ImageGenerationCallCompleted
    | CompactionCompacting
    | AudioDelta
    | AudioDone
    | AudioTranscriptDelta
    | AudioTranscriptDone
    | Steer
    | SteerAccepted
    | SteerPending
    | SteerFailed
)

#: The struct of every event name.
EVENT_TYPES: Final[dict[str, type[Event]]] = {
    str(struct.__struct_config__.tag): struct for struct in get_args(KnownEvent)
}


# JSON.


def encode_event(event: Event) -> bytes:
    """The JSON of an event, without any framing."""
    if isinstance(event, UnknownEvent):
        return event.raw
    return _encode(event)


def decode_event(data: bytes | bytearray | memoryview) -> Event:
    """An event from its JSON; raises `EventDecodeError` only when it is no object with a `type`.

    Unknown keys are ignored. Missing numbers and ids are read as `UNTOLD` and "" (llama.cpp sends no
    sequence numbers), and an `error` without a type as an error event. What still does not fit comes
    back as an `UnknownEvent`.
    """
    try:
        return _decode_known(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as failure:
        return _decode_misfit(bytes(data), failure)


class DeltaEncoder:
    """Writes the delta events of one part: all that stays the same is encoded once.

    The JSON equals that of `encode_event` for the same struct.
    """

    __slots__ = ("_after_sequence", "_before_sequence", "_has_logprobs")

    def __init__(
        self,
        event_type: str,
        item_id: str,
        output_index: int,
        *,
        content_index: int | None = None,
        summary_index: int | None = None,
    ) -> None:
        struct = EVENT_TYPES[event_type]
        given: dict[str, Any] = {"item_id": item_id, "output_index": output_index}
        if content_index is not None:
            given["content_index"] = content_index
        if summary_index is not None:
            given["summary_index"] = summary_index
        expected = set(struct.__struct_fields__) - {"sequence_number", "delta", "logprobs", "obfuscation"}
        if "delta" not in struct.__struct_fields__ or expected != set(given):
            raise ValueError(f"{event_type} needs {sorted(expected)} and a delta, not {sorted(given)}")
        self._has_logprobs = "logprobs" in struct.__struct_fields__
        self._before_sequence = b'{"type":%b,"sequence_number":' % _encode(event_type)
        self._after_sequence = b',%b,"delta":' % _encode(given)[1:-1]

    def encode(
        self,
        sequence_number: int,
        delta: str,
        obfuscation: str | None = None,
        logprobs: bytes | None = None,
    ) -> bytes:
        """The JSON of one delta; `logprobs` is a JSON list and belongs to output text alone."""
        if self._has_logprobs:
            tail = b',"logprobs":[]}' if logprobs is None else b',"logprobs":%b}' % logprobs
        elif logprobs is not None:
            raise ValueError("log probabilities belong to response.output_text.delta alone")
        else:
            tail = b"}"
        if obfuscation is not None:
            tail = b',"obfuscation":%b%b' % (_encode(obfuscation), tail)
        return b"%b%d%b%b%b" % (
            self._before_sequence,
            sequence_number,
            self._after_sequence,
            _encode(delta),
            tail,
        )


class _Head(msgspec.Struct):
    type: str = ""
    error: Any = None
    sequence_number: Any = UNTOLD


#: What a sender may leave out, and how we then read it.
_UNTOLD_FIELDS: Final = {
    "sequence_number": Raw(b"-1"),
    "output_index": Raw(b"-1"),
    "content_index": Raw(b"-1"),
    "summary_index": Raw(b"-1"),
    "annotation_index": Raw(b"-1"),
    "command_index": Raw(b"-1"),
    "item_id": Raw(b'""'),
    "logprobs": EMPTY_LIST,
}

_encode = msgspec.json.Encoder().encode
_decode_known = cast("msgspec.json.Decoder[Event]", msgspec.json.Decoder(KnownEvent)).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def _decode_misfit(data: bytes, failure: Exception) -> Event:
    """The slow path: the type is unknown, or something is missing."""
    try:
        head = _decode_head(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as not_an_event:
        raise EventDecodeError(f"not an event: {not_an_event}") from not_an_event
    if head.type == "error" or (head.error and not head.type):
        return _decode_error(data)
    if not head.type:
        raise EventDecodeError("not an event: it has no type")
    number = head.sequence_number if type(head.sequence_number) is int else UNTOLD
    if head.type not in EVENT_TYPES:
        return UnknownEvent(type=head.type, raw=data, sequence_number=number)
    members = _decode_members(data)
    for name in EVENT_TYPES[head.type].__struct_fields__:
        if name in _UNTOLD_FIELDS and bytes(members.get(name, b"null")) == b"null":
            members[name] = _UNTOLD_FIELDS[name]
    try:
        return _decode_known(_encode(members))
    except msgspec.DecodeError:
        return UnknownEvent(type=head.type, raw=data, sequence_number=number, problem=str(failure))


def _decode_error(data: bytes) -> ErrorEvent:
    """Both shapes of an error: `error` as an object (or a text), or code, message and param at the top."""
    members = msgspec.json.decode(data)
    told = members.get("error") or members
    if not isinstance(told, dict):
        told = {"message": told}
    kind = told.get("type")
    number = members.get("sequence_number")
    return ErrorEvent(
        sequence_number=number if type(number) is int else UNTOLD,
        error=ErrorObject(
            message=str(told.get("message") or ""),
            type=str(kind) if kind and kind != "error" else "server_error",
            param=_to_text(told.get("param")),
            code=_to_text(told.get("code")),
        ),
    )


def _to_text(value: object) -> str | None:
    return None if value is None else str(value)
