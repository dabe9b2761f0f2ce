"""Every item behind a prompt, as rows: the stored path, then the request's own, with its compaction items opened.

It reads the store and writes nothing. Invariant: `items` are the rows' items as a model is shown them, one for one.
"""

from collections.abc import Sequence

import msgspec

from antiphon.context.rows import Row
from antiphon.context.sealed_window import SealedWindow, expand
from antiphon.engine.catalog import Target
from antiphon.engine.continuing import Origin, list_rows, load_steps, make_opener, resolve_kept
from antiphon.engine.sealed_windows import is_compaction, is_own_seal
from antiphon.engine.services import Services
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import Item, get_item_id
from antiphon.sessions import Node


class PathRows(msgspec.Struct, kw_only=True):
    """A path as the ladder and the truncation see it.

    `raw`: all rows, compaction items as such. `rows`: those that the model is told, in order; the last `new_count` of
    them are the request's. `windows`: the opened windows that are shown. `notes`: what is not told as it was.
    """

    raw: list[Row]
    rows: list[Row]
    items: list[Item]
    new_count: int
    #: What the compaction items stand for.
    superseded: list[Row]
    windows: dict[str, SealedWindow]
    nodes: list[Node]
    notes: list[str] = []


def make_given_rows(given: Sequence[Item], node_id: str, *, is_stored: bool) -> list[Row]:
    """The request's own items, under the ids that they have or will have; `is_stored`: they can be fetched later."""
    return [
        Row(
            id=get_item_id(item) or derive_item_id(item.type, node_id, position),
            item=item,
            node=node_id if is_stored else "",
        )
        for position, item in enumerate(given)
    ]


async def load_path_rows(
    given: Sequence[Row],
    origin: Origin,
    tenant: str,
    target: Target,
    services: Services,
    *,
    opens: bool = True,
) -> PathRows:
    """The rows of a path and of a request that continues it; `opens`: as in `load_steps`.

    `given`: the request's rows, with their items as a model is shown them. Raises `RequestError` for a compaction item
    of the request that does not open.
    """
    steps, notes = await load_steps(origin, tenant, services, opens=opens)
    nodes = [step.node for step in steps]
    path = [row for step in steps for row in list_rows(step, target)]
    root = nodes[0].id if nodes else next((row.node for row in given if row.node), "")
    raw = [msgspec.structs.replace(row, root=root, place=place) for place, row in enumerate([*path, *given])]
    if services.lane is not None:
        # What a connection holds can be fetched by nobody.
        raw = [
            msgspec.structs.replace(row, node="") if row.node and services.lane.holds(row.node) else row
            for row in raw
        ]
    path, given = raw[: len(path)], raw[len(path) :]
    opener = make_opener(tenant, target, services)
    windows: dict[str, SealedWindow] = {}
    begins_anew = False
    if any(is_compaction(row.item) for row in raw):
        windows, unopened = await opener.open_kept(path, nodes)
        if unopened and opens and origin.passes_over_deleted:
            return await load_path_rows(given, origin, tenant, target, services, opens=False)
        sent = await opener.open_sent([row.item for row in given], [row.id for row in given])
        begins_anew = bool(sent)
        windows |= sent
        notes = [*notes, *unopened]
    # What does not open any more is no item that a model could be told of.
    expansion = expand([row for row in raw if row.id in windows or not is_own_seal(row.item)], windows)
    shown = {id(row.item) for row in given}
    kept = [row.item for row in expansion.rows if id(row.item) not in shown]
    resolved, unseen = await resolve_kept(kept, tenant, target, services)
    rest = iter(resolved)
    items = [row.item if id(row.item) in shown else next(rest) for row in expansion.rows]
    return PathRows(
        raw=raw,
        rows=expansion.rows,
        items=items,
        new_count=len(expansion.rows) if begins_anew else len(given),
        superseded=expansion.superseded,
        windows=expansion.windows,
        nodes=nodes,
        notes=[*notes, *unseen],
    )
