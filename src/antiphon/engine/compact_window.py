"""The answer of `POST /v1/responses/compact`: the user messages that are kept, then the item that holds the window.

It runs one pass and stores nothing. Invariant: sent back as it is, the answer is the window that the pass left.
"""

import time

import msgspec

from antiphon.backends import BackendUsage
from antiphon.context.rows import Row
from antiphon.engine.compacting import Pass, run_pass
from antiphon.engine.compaction_orders import Order
from antiphon.engine.gather import Plan
from antiphon.engine.services import Services
from antiphon.engine.settings import build_told_usage, list_untold
from antiphon.protocol.errors import CompactionFailedError
from antiphon.protocol.items import Message, normalise_item
from antiphon.protocol.responses import CompactedResponse


async def compact_window(plan: Plan, order: Order, services: Services) -> CompactedResponse:
    """Compact the window behind a plan; raises `CompactionFailedError` where nothing fits."""
    done = await run_pass(plan, order, services, reason=order.reason, position=len(plan.given))
    if not isinstance(done, Pass):
        raise CompactionFailedError
    usage = done.usage or BackendUsage(0, 0)
    kept = [msgspec.Raw(normalise_item(row.item, row.id)) for row in done.rows if _is_kept(row)]
    response = CompactedResponse(
        id=plan.node_id,
        created_at=int(time.time()),
        output=[*kept, msgspec.Raw(done.item.raw)],
        usage=build_told_usage(usage),
    )
    extension: dict[str, object] = {"compaction": {"passes": [done.report]}}
    warnings = [*plan.warnings, *done.warnings]
    if warnings:
        extension["warnings"] = [{"code": code, "message": text} for code, text in warnings]
    untold = (
        list_untold(usage)
        if done.usage is not None
        else ["input_tokens", "output_tokens", *list_untold(usage)]
    )
    if untold:
        extension["usage_untold"] = untold
    response.antiphon = extension
    return response


def _is_kept(row: Row) -> bool:
    """Whether a row is a user's own message, and not what stands for others."""
    value = row.item.value
    return isinstance(value, Message) and value.role == "user" and row.replaced != "summary"
