"""The Response object, lists, deletions and models, as the server sends them.

Knows nothing of how they came about. Invariant: every key of the API that we can tell truthfully is
there; what is `UNSET` is left out.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(msgspec.Struct, gc=False):
    """What of the input came from, or went into, the backend's prompt cache."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, gc=False):
    """What of the output was reasoning."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True, gc=False):
    """Token counts of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = msgspec.field(default_factory=InputTokensDetails)
    output_tokens: int
    output_tokens_details: OutputTokensDetails = msgspec.field(default_factory=OutputTokensDetails)
    total_tokens: int


class IncompleteDetails(msgspec.Struct, gc=False):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "max_messages", "content_filter", "steered"]


class ReasoningEcho(msgspec.Struct, gc=False):
    """The reasoning settings in force; None where the model's own apply."""

    effort: str | None = None
    summary: str | None = None


class ConversationEcho(msgspec.Struct, gc=False):
    """The conversation that a response belongs to."""

    id: str


class Response(msgspec.Struct, kw_only=True):
    """One response. `output` holds items as JSON; `usage` is None until the backend told it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: dict[str, Any] | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[msgspec.Raw] = []
    parallel_tool_calls: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: ReasoningEcho = msgspec.field(default_factory=ReasoningEcho)
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"format": {"type": "text"}, "verbosity": "medium"}
    )
    tool_choice: str | dict[str, Any] = "auto"
    #: The echo of the tools; Raw when it is JSON already.
    tools: list[dict[str, Any]] | msgspec.Raw = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: Usage | None = None
    user: str | None = None
    conversation: ConversationEcho | UnsetType = UNSET
    prompt_cache_options: dict[str, Any] | UnsetType = UNSET
    antiphon: dict[str, Any] | UnsetType = UNSET


class ListPage(msgspec.Struct, kw_only=True):
    """One page of a list; the ids are None when it is empty."""

    object: Literal["list"] = "list"
    data: list[msgspec.Raw] = []
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class DeletedResponse(msgspec.Struct):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation: a place for items that is not bound to one response."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class DeletedConversation(msgspec.Struct):
    """The answer to the deletion of a conversation."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class CompactedResponse(msgspec.Struct, kw_only=True):
    """A window made smaller: `output` is what stands in its place. It is no response, and is not stored."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[msgspec.Raw] = []
    usage: Usage
    antiphon: dict[str, Any] | UnsetType = UNSET


class InputTokens(msgspec.Struct, kw_only=True):
    """How many tokens a request's prompt has; `antiphon` says so when it is an estimate."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
    antiphon: dict[str, Any] | UnsetType = UNSET


class ModelTold(msgspec.Struct, kw_only=True):
    """What is known of a model: how many tokens its window holds, whether it sees images, its reasoning efforts."""

    window_tokens: int | None
    sees_images: bool | None
    efforts: tuple[str, ...]


class ModelObject(msgspec.Struct):
    """A model that this server offers; `antiphon` where one alone is asked for and its server tells of it."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = ""
    antiphon: ModelTold | UnsetType = UNSET


class ModelList(msgspec.Struct):
    """The models that this server offers."""

    object: Literal["list"] = "list"
    data: list[ModelObject] = []
