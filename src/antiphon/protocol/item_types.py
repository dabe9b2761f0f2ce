"""The items of a plain conversation: messages, function and custom calls, reasoning, compaction, control.

Knows nothing of hosted tools or of how items arrive. Invariant: a field that may be left out is None when
it was left out or null, and is then not encoded.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.protocol.content import (
    MessagePart,
    ReasoningText,
    SummaryText,
    Text,
    ToolOutputPart,
)

#: Longest sealed blob, in characters.
ENCRYPTED_MAX_LENGTH = 20_971_520

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
CallId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[a-zA-Z0-9_-]+$")]
Arguments: TypeAlias = Annotated[str, Meta(max_length=10_485_760)]
Role: TypeAlias = Literal["assistant", "system", "developer", "user"]


class TypedItem(msgspec.Struct, kw_only=True, tag_field="type", gc=False, omit_defaults=True):
    """What all items share: the `type` key tells them apart."""

    id: ItemId | None = None


class Caller(msgspec.Struct, gc=False, omit_defaults=True):
    """Who made a call: the model itself, or a program of its own."""

    type: Literal["direct", "program"]
    caller_id: str | None = None


class Message(TypedItem, kw_only=True, tag="message"):
    """A message in any of its three forms; an assistant's holds output parts, any other's input parts."""

    role: Role
    content: Text | list[MessagePart]
    status: ItemStatus | None = None
    phase: Literal["commentary", "partial_answer", "final_answer"] | None = None


class ItemReference(TypedItem, kw_only=True, tag="item_reference"):
    """Stands for a stored item."""

    id: ItemId


class FunctionCall(TypedItem, kw_only=True, tag="function_call"):
    """The model calls a function; `arguments` is JSON text as the model wrote it."""

    call_id: CallId
    name: ToolName
    arguments: Arguments
    status: ItemStatus | None = None
    namespace: str | None = None
    caller: Caller | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)
    created_by: str | None = None


class FunctionCallOutput(TypedItem, kw_only=True, tag="function_call_output"):
    """What a function gave back."""

    call_id: CallId
    output: Text | list[ToolOutputPart]
    status: ItemStatus | None = None
    name: str | None = None
    namespace: str | None = None
    caller: Caller | None = None
    created_by: str | None = None


class CustomToolCall(TypedItem, kw_only=True, tag="custom_tool_call"):
    """The model calls a custom tool with raw text."""

    call_id: CallId
    name: ToolName
    input: Text
    status: ItemStatus | None = None
    namespace: str | None = None
    caller: Caller | None = None
    is_async: bool | None = msgspec.field(name="async", default=None)
    created_by: str | None = None


class CustomToolCallOutput(TypedItem, kw_only=True, tag="custom_tool_call_output"):
    """What a custom tool gave back."""

    call_id: CallId
    output: Text | list[ToolOutputPart]
    status: ItemStatus | None = None
    caller: Caller | None = None
    created_by: str | None = None


class Reasoning(TypedItem, kw_only=True, tag="reasoning"):
    """The model's reasoning: summaries, raw text, or sealed."""

    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: Annotated[str, Meta(max_length=ENCRYPTED_MAX_LENGTH)] | None = None
    status: ItemStatus | None = None


class Compaction(TypedItem, kw_only=True, tag="compaction"):
    """A sealed window that stands for what came before it."""

    encrypted_content: Annotated[str, Meta(max_length=ENCRYPTED_MAX_LENGTH)]
    created_by: str | None = None


class CompactionSummary(TypedItem, kw_only=True, tag="compaction_summary"):
    """Another name for a compaction item, used by some clients."""

    encrypted_content: Annotated[str, Meta(max_length=ENCRYPTED_MAX_LENGTH)]


class CompactionTrigger(TypedItem, kw_only=True, tag="compaction_trigger"):
    """Asks for a compaction; a control signal that is never stored."""


class ConfigurationUpdate(TypedItem, kw_only=True, tag="configuration_update"):
    """Changes settings from here on."""

    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None


class AdditionalTools(TypedItem, kw_only=True, tag="additional_tools"):
    """More tools from here on."""

    tools: list[dict[str, Any]]
    role: Literal["developer"] | None = None


class ToolSearchCall(TypedItem, kw_only=True, tag="tool_search_call"):
    """The model looks for tools."""

    arguments: Any
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    status: ItemStatus | None = None
    created_by: str | None = None


class ToolSearchOutput(TypedItem, kw_only=True, tag="tool_search_output"):
    """The tools that were found."""

    tools: list[dict[str, Any]]
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    status: ItemStatus | None = None
    created_by: str | None = None


class Program(TypedItem, kw_only=True, tag="program"):
    """The model calls its tools from a program."""

    call_id: CallId
    code: Text
    fingerprint: str


class ProgramOutput(TypedItem, kw_only=True, tag="program_output"):
    """What a program gave back."""

    call_id: CallId
    result: Text
    status: Literal["completed", "incomplete"]


class AgentMessage(TypedItem, kw_only=True, tag="agent_message"):
    """A message from one agent to another; its parts are kept as they came (text, images, sealed content)."""

    content: Text | list[dict[str, Any]]
    author: str | None = None
    recipient: str | None = None


class UnknownItem(msgspec.Struct, gc=False):
    """An item of a type that this version does not know; its fields live in the raw bytes."""

    type: str
    id: str | None = None
