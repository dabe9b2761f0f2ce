"""What a backend does: turn items into its own transcript, stream one answer, tell about its models.

Contract of `stream`: the first batch holds `Opened` alone, when the server has accepted the request;
a refusal before that is raised as a `BackendError`. After `Opened`, failure is an event: the last
event is always `Finished` or `Failed`, exactly one of them. Closing the iterator cancels upstream.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from antiphon.context import Profile
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.items import Item
from antiphon.protocol.requests import CreateRequest, TextFormat
from antiphon.protocol.tools import FunctionTool

#: A path on which no call waits for its output.
NO_CALLS: Mapping[str, str] = MappingProxyType({})

FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]


class BackendUsage(msgspec.Struct, gc=False):
    """Token counts as the server told them; None where it did not tell."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class Opened(msgspec.Struct, gc=False):
    """The server accepted the request."""


class TextDelta(msgspec.Struct, gc=False):
    """A piece of visible text; `logprobs` are entries in the Responses shape."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


class ReasoningDelta(msgspec.Struct, gc=False):
    """A piece of raw reasoning."""

    text: str


class RefusalDelta(msgspec.Struct, gc=False):
    """A piece of a refusal."""

    text: str


class CallDelta(msgspec.Struct, gc=False):
    """A piece of a function call: `index` tells calls apart; id and name come once, or late, or never ("")."""

    index: int
    id: str
    name: str
    arguments: str


class ItemOpened(msgspec.Struct):
    """An output item begins that is handed on as it is; `item` is its JSON as `output_item.added` shows it.

    `index` tells the open items of a stream apart. An item without an id gets one of ours.
    """

    index: int
    item: bytes


class ItemEvent(msgspec.Struct):
    """An event inside such an item: its name, and its fields but for type, numbers, item id and output index.

    Field values are builtins or `msgspec.Raw`. What the API's event has and `fields` lacks is an error of ours.
    """

    index: int
    name: str
    fields: dict[str, Any] = {}


class ItemClosed(msgspec.Struct):
    """Such an item is done; `item` is its whole JSON."""

    index: int
    item: bytes


class Finished(msgspec.Struct, gc=False):
    """The generation ended by itself."""

    reason: FinishReason
    usage: BackendUsage | None = None
    #: What the server itself warns of, as (code, text).
    warnings: tuple[tuple[str, str], ...] = ()


class Failed(msgspec.Struct):
    """The generation broke off."""

    error: AntiphonError


BackendEvent: TypeAlias = (
    Opened
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | CallDelta
    | ItemOpened
    | ItemEvent
    | ItemClosed
    | Finished
    | Failed
)


class Segment(msgspec.Struct, gc=False):
    """Some items in the backend's own transcript form.

    `lead` is the leading run of system and developer text (only when transcribed `at_start`); `body` is
    what follows, in pieces that a dialect can join with a comma; empty when there is nothing. `refusal` is why an item
    was left out that the server is known to refuse, for whoever has just sent it.
    """

    lead: str
    body: bytes
    warnings: tuple[str, ...] = ()
    refusal: str = ""


class ModelFacts(msgspec.Struct, frozen=True):
    """What a server says of one of its models."""

    name: str
    profile: Profile
    created: int = 0
    owned_by: str = ""


class Relayed(msgspec.Struct):
    """A server's answer to a request that was handed on: the head, and the body's bytes as they arrive.

    Closing `chunks` cancels upstream; reading them to the end keeps the connection.
    """

    status: int
    headers: dict[str, str]
    chunks: AsyncGenerator[bytes, None]


class Ask(msgspec.Struct, kw_only=True):
    """One generation. `transcript` holds transcribed bytes in order, already comma-joined within each piece;
    the pieces are joined with a comma too."""

    model: str
    profile: Profile
    system: str = ""
    transcript: Sequence[bytes] = ()
    tools: Sequence[FunctionTool] = ()
    #: `none` means that no tools are sent; a name forces that tool.
    tool_choice: Literal["auto", "none", "required"] = "auto"
    forced_tool: str | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    #: None: no log probabilities; else the number of alternatives.
    top_logprobs: int | None = None
    text_format: TextFormat | None = None
    verbosity: str | None = None
    effort: str | None = None
    hints: dict[str, Any] = {}
    #: The whole request, for a dialect that speaks Responses itself and can say all of it.
    request: CreateRequest | None = None


class Backend(Protocol):
    """The seam to a model server. One object per endpoint."""

    name: str
    #: Whether the server speaks Responses itself: tools, items and settings go to it as they came.
    speaks_responses: bool

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """Pure: items to this dialect's transcript bytes. `at_start`: nothing of the path precedes them.

        `open_calls`: the calls of the path that these items answer, id -> function name, in their order.
        `async_calls`: the calls of the path whose results may come late; each has a stand-in where it was made.
        """
        ...

    def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """One answer, in batches of whatever has arrived (contract in the module's docstring)."""
        ...

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """The server's models; raises `BackendError` when it cannot be asked.

        `fresh`: a name was missed, so what was read a while ago does not do (within reason).
        """
        ...

    async def get_facts(self, model: str) -> ModelFacts:
        """What is known of one model, the server asked at most once for a while; never raises."""
        ...

    async def count_tokens(self, ask: Ask) -> int | None:
        """The exact number of prompt tokens, where the server counts; else None."""
        ...

    async def relay(self, path: str, body: bytes) -> Relayed:
        """Hand a request of another API on as it is (`/chat/completions`); the model is named in it already.

        Raises `BackendError` when the server cannot be reached, and `RequestError` when this backend has no such
        API. What the server answers, errors too, is given back as it came.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
