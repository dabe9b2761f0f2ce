"""What a request says of compaction: whether it asks for it, allows it, or leaves it to the model's policy.

It reads a request and a configuration, and looks at no history. Invariant: a trigger is a signal; once the order is
read, it is no item any more.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

from antiphon.context.rows import Mark
from antiphon.context.truncation import RESERVE_LIMIT_SHARE
from antiphon.engine.catalog import Target
from antiphon.engine.compaction_settings import CompactionSettings
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import CompactionTrigger, Item
from antiphon.protocol.requests import CreateRequest

#: Why a pass is made: a trigger item, `POST /v1/responses/compact`, `context_management`, the model's policy, or the
#: refusal of a prompt that was too long.
PassReason: TypeAlias = Literal["trigger", "compact", "threshold", "policy", "overflow"]
#: `auto`: the free rungs, then a summary; `elide`: the free rungs alone; `summary`: always a summary; `extract`: no
#: model at all.
Method: TypeAlias = Literal["auto", "elide", "summary", "extract"]

#: A trigger pays for its summary out of the output that is allowed.
TRIGGER_MIN_OUTPUT_TOKENS: Final = 20_000


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about compaction in one response.

    `is_whole`: the compaction item is the whole answer. `is_asked`: the client asked, so `usage` counts its model
    calls. `threshold_tokens`: a prompt over it is compacted; None: where a model's window is not known, none is.
    """

    reason: PassReason
    is_whole: bool = False
    is_asked: bool = False
    threshold_tokens: int | None = None
    method: Method = "auto"
    marks: dict[str, Mark] = {}


def read_order(request: CreateRequest, target: Target, settings: CompactionSettings) -> Order | None:
    """The order of a request, whose trigger is taken out of its input; None where nothing asks for or allows a pass.

    Raises `RequestError` for a trigger that is out of place (responses-API section '`compaction_trigger`').
    """
    options = request.antiphon or {}
    method: Method = options.get("method") or "auto"
    marks: dict[str, Mark] = options.get("marks") or {}
    if _take_trigger(request):
        return Order(reason="trigger", is_whole=True, is_asked=True, method=method, marks=marks)
    asked = _find_threshold(request.context_management)
    if asked is None and not settings.allows(target.compaction):
        return None
    window = limit_window(target, request.max_output_tokens)
    known = [
        each
        for each in (
            asked or None,
            target.compact_threshold if asked is None else None,
            int(window * settings.limits.at_share) if window is not None else None,
        )
        if each is not None
    ]
    return Order(
        reason="policy" if asked is None else "threshold",
        is_asked=asked is not None,
        threshold_tokens=min(known, default=None),
        method=method,
        marks=marks,
    )


def limit_window(target: Target, max_output_tokens: int | None) -> int | None:
    """What a prompt may have of a window: where a refusal has told it, the answer was counted with the prompt."""
    window = target.window_tokens
    if window is None or max_output_tokens is None or window != target.learned_window:
        return window
    return window - min(max_output_tokens, int(window * RESERVE_LIMIT_SHARE))


def order_compaction(request: CreateRequest) -> Order:
    """The order of `POST /v1/responses/compact`, whose decoder refuses a trigger: it has no meaning there."""
    options = request.antiphon or {}
    return Order(
        reason="compact",
        is_whole=True,
        is_asked=True,
        method=options.get("method") or "auto",
        marks=options.get("marks") or {},
    )


def _find_threshold(entries: list[dict[str, Any]] | None) -> int | None:
    """The lowest threshold that is asked for; 0 where it is left to the server; None where nothing is asked."""
    if entries is None:
        return None
    return min((entry["compact_threshold"] for entry in entries if entry.get("compact_threshold")), default=0)


def _take_trigger(request: CreateRequest) -> bool:
    places = [at for at, item in enumerate(request.input) if isinstance(item.value, CompactionTrigger)]
    if not places:
        return False
    if len(places) > 1:
        raise RequestError("Only one 'compaction_trigger' item may be provided.", param="input")
    if places[0] != len(request.input) - 1:
        raise RequestError("The 'compaction_trigger' item must be the final input item.", param="input")
    limit = request.max_output_tokens
    if limit is not None and limit < TRIGGER_MIN_OUTPUT_TOKENS:
        raise RequestError(
            "'compaction_trigger' requires 'max_output_tokens' to be at least "
            f"{TRIGGER_MIN_OUTPUT_TOKENS} when specified.",
            param="max_output_tokens",
        )
    if not request.generate:
        raise RequestError(
            "Invalid value: 'generate' is false, but 'compaction_trigger' asks for a compaction. Leave one out.",
            param="generate",
            code="invalid_value",
        )
    request.input = request.input[:-1]
    if not (request.input or request.previous_response_id or request.conversation):
        raise RequestError(
            "There is nothing to compact: 'input' holds nothing but the 'compaction_trigger' item. Put the "
            "conversation before it, or continue one by 'previous_response_id' or 'conversation'.",
            param="input",
        )
    return True


def check_items(items: list[Item]) -> None:
    """Raise for settings that a compaction would end without a word: they do not survive one."""
    update = compaction = -1
    for position, item in enumerate(items):
        if item.type == "configuration_update":
            update = position
        elif item.type in ("compaction", "compaction_summary"):
            compaction = position
            if 0 <= update < compaction and not any(
                later.type == "configuration_update" for later in items[compaction:]
            ):
                raise RequestError(
                    "The 'configuration_update' item type is not supported with compaction without a subsequent "
                    "configuration update.",
                    param="input",
                )
