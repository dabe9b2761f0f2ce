"""What a model saw of a path: the answer of `GET /v1/responses/{id}/window`.

Knows nothing of how it is found out. Invariant: every item of the path is listed, in order, shown or not, and one that
was not shown says why; one that a compaction removed or shortened names the rung that did.
"""

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.context.rows import Rung
from antiphon.context.truncation import DroppedItem
from antiphon.protocol.items import Item, Message, is_call

#: `backend`: by the backend's own tokenizer; `estimate`: by ours, scaled to the whole prompt's count.
CountedBy: TypeAlias = Literal["backend", "estimate"]
#: Why an item was not shown: there was no room; the call was cut off; the model takes no earlier reasoning; what it
#: holds was told as tools, or as a setting; the backend's form has nothing for it; it was left out of a mended path;
#: a compaction stands for it; or it is a compaction without a summary, in whose place stand the items that it holds.
Reason: TypeAlias = Literal[
    "dropped",
    "unfinished_call",
    "reasoning_not_sent",
    "told_as_tools",
    "told_as_setting",
    "not_transcribed",
    "pair_deleted",
    "compacted",
    "opened",
]
PartKind: TypeAlias = Literal["server_prompt", "instructions", "tools"]

_UNTOLD_REASONS: Final[dict[str, Reason]] = {
    "reasoning": "reasoning_not_sent",
    "additional_tools": "told_as_tools",
    "mcp_list_tools": "told_as_tools",
    "tool_search_output": "told_as_tools",
    "configuration_update": "told_as_setting",
    "compaction_trigger": "told_as_setting",
}


class WindowItem(msgspec.Struct, kw_only=True):
    """One item; `node` is the response that it came with, empty for one that a compaction brought and nothing stores.

    An item that is not shown has no tokens, but for one that was dropped: those that the response told.
    """

    id: str
    type: str
    role: str | UnsetType = UNSET
    node: str
    tokens: int = 0
    shown: bool = True
    reason: Reason | UnsetType = UNSET
    #: What of the ladder removed or shortened the item; absent where nothing did.
    rung: Rung | UnsetType = UNSET
    #: About how many tokens that freed, beside what is shown of it.
    removed_tokens: int | UnsetType = UNSET


class WindowPart(msgspec.Struct, kw_only=True):
    """What stands around the items in a prompt."""

    kind: PartKind
    tokens: int = 0


class WindowTokens(msgspec.Struct, kw_only=True):
    """The prompt's tokens: as the backend reported them with its answer, and as they were counted for this report."""

    reported: int | None = None
    counted: int
    exact: bool


class WindowWarning(msgspec.Struct):
    """A warning of the response."""

    code: str
    message: str


class WindowReport(msgspec.Struct, kw_only=True):
    """The report. `messages` is the transcript in the backend's own form, byte for byte; `system` stands before it."""

    object: Literal["response.window"] = "response.window"
    response_id: str
    model: str
    window_tokens: int | None = None
    input_tokens: WindowTokens
    counted_by: CountedBy
    parts: list[WindowPart] = []
    items: list[WindowItem] = []
    dropped: list[DroppedItem] = []
    warnings: list[WindowWarning] = []
    system: str = ""
    messages: msgspec.Raw = msgspec.Raw(b"[]")


def find_reason(item: Item, *, dropped: bool, transcribed: bool) -> Reason | None:
    """Why a model does not see an item; None when it does."""
    if dropped:
        return "dropped"
    if is_call(item) and getattr(item.value, "status", None) == "incomplete":
        return "unfinished_call"
    if transcribed:
        return None
    return _UNTOLD_REASONS.get(item.type, "not_transcribed")


def describe_item(
    item: Item, item_id: str, node_id: str, reason: Reason | None, rung: Rung | None = None
) -> WindowItem:
    """The row of an item, without its tokens."""
    return WindowItem(
        id=item_id,
        type=item.type,
        role=item.value.role if isinstance(item.value, Message) else UNSET,
        node=node_id,
        shown=reason is None,
        reason=reason if reason is not None else UNSET,
        rung=rung if rung is not None else UNSET,
    )
