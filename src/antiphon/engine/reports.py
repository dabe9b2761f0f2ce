"""What a model saw when it made a stored response: its prompt made anew, and told item by item.

It uses the code path of requests, so that the bytes are those that were sent, as long as model and profile
are. Invariant: nothing is written, and nothing of another tenant is read.
"""

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from antiphon.backends import Ask, Segment
from antiphon.context.rows import Row
from antiphon.context.window_report import WindowReport
from antiphon.engine.asking import join_system, make_ask
from antiphon.engine.catalog import Target
from antiphon.engine.continuing import (
    Begun,
    Origin,
    begin_anew,
    find_window,
    has_compaction,
    list_input_rows,
    load_steps,
    resolve_stored,
    transcribe_input,
)
from antiphon.engine.fitting import leave_out
from antiphon.engine.gather import make_history, open_hosted, open_toolbox
from antiphon.engine.path_rows import PathRows, load_path_rows
from antiphon.engine.paths import Step, read_step
from antiphon.engine.recall import offer_recall
from antiphon.engine.services import Services
from antiphon.engine.settings import decode_outcome, decode_settings
from antiphon.engine.steps import offer_hosted
from antiphon.engine.window_report import build_window_report
from antiphon.engine.windows import Window
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, McpCall
from antiphon.protocol.requests import CreateRequest, ReasoningConfig
from antiphon.protocol.tools import decode_tool_choice, decode_tools
from antiphon.sessions import Node
from antiphon.store import Record

_encode = msgspec.json.Encoder().encode


async def report_window(record: Record, tenant: str, services: Services) -> WindowReport:
    """The report for a response that the tenant has."""
    settings = decode_settings(record.settings)
    outcome = decode_outcome(record.outcome)
    target = await services.catalog.find(settings.model)
    origin = Origin(node=record.parent, conversation=outcome.conversation)
    try:
        window = await find_window(origin, tenant, target, services)
    except RequestError:
        # Something above was deleted since: what is left is told of.
        origin = Origin(node=record.parent, mends=True)
        window = await find_window(origin, tenant, target, services)
    step, _ = await resolve_stored(read_step(record), tenant, target, services)
    request = _restore_request(record, step)
    path, begun = await _load_rows(record, step, origin, tenant, target, window, services)
    segment = None
    if begun is not None:
        window, segment, request.input = begun.window, begun.segment, list(begun.items)
    ask = _render(request, tenant, _find_early(step.output), target, window, services, segment)
    if outcome.dropped:
        ids = frozenset(item_id for item_id, _, _ in outcome.dropped)
        ask = leave_out(ask, make_history(path, request, target), ids, target=target)

    async def resolve(items: Sequence[Item]) -> Sequence[Item]:
        whole = Step(record, list(items), [], [""] * len(items), [])
        return (await resolve_stored(whole, tenant, target, services))[0].input

    return await build_window_report(
        record,
        await _load_path(record, origin, tenant, services),
        ask=ask,
        target=target,
        counter=services.counter.of_tenant(tenant),
        make_system=lambda lead: join_system(target, request.instructions, lead),
        resolve=resolve,
        superseded={row.id: "summary" for row in path.superseded},
        prompt=[
            msgspec.structs.replace(row, item=item) for row, item in zip(path.rows, path.items, strict=True)
        ],
    )


async def _load_rows(
    record: Record,
    step: Step,
    origin: Origin,
    tenant: str,
    target: Target,
    window: Window,
    services: Services,
) -> tuple[PathRows, Begun | None]:
    """What stands behind the prompt of a record, and how it began anew where the record holds a compaction."""
    if not has_compaction(step):
        return await load_path_rows(list_input_rows(step), origin, tenant, target, services), None
    steps, _ = await load_steps(origin, tenant, services)
    begun = await begin_anew([*steps, read_step(record)], tenant, target, window, services)
    path = PathRows(
        raw=[],
        rows=list(begun.rows),
        items=list(begun.items),
        new_count=len(begun.rows),
        superseded=list(begun.superseded),
        windows={},
        nodes=[],
    )
    return path, begun if begun.step is not None else None


async def _load_path(record: Record, origin: Origin, tenant: str, services: Services) -> list[Node]:
    path = await services.store.load_path(tenant, record.id, skip_deleted=origin.passes_over_deleted)
    return path or [record]


def _restore_request(record: Record, step: Step) -> CreateRequest:
    """The request that the record was made from, as far as its prompt goes."""
    settings = decode_settings(record.settings)
    return CreateRequest(
        model=settings.model,
        input=step.input,
        instructions=record.instructions.decode() if record.instructions is not None else None,
        tools=decode_tools(record.tools) if record.tools is not None else [],
        tool_choice=decode_tool_choice(_encode(settings.tool_choice)),
        parallel_tool_calls=settings.parallel_tool_calls,
        reasoning=ReasoningConfig(effort=settings.effort) if settings.effort is not None else None,  # type: ignore[arg-type]
        max_output_tokens=settings.max_output_tokens,
    )


def _find_early(output: Sequence[Item]) -> list[Item]:
    """What of an output came before the model was asked: lists of servers' tools, and calls that were approved."""
    return list(
        takewhile(
            lambda item: (
                item.type == "mcp_list_tools"
                or (isinstance(item.value, McpCall) and item.value.approval_request_id is not None)
            ),
            output,
        )
    )


def _render(
    request: CreateRequest,
    tenant: str,
    early: Sequence[Item],
    target: Target,
    window: Window,
    services: Services,
    begun: Segment | None,
) -> Ask:
    segment = begun or transcribe_input(request.input, target, window)
    toolbox = open_toolbox(request, target, window, services)
    ask = make_ask(request, target, window, segment, toolbox, [])
    recall = None
    if window.is_compacted and services.compaction.recall:
        # It is told of, and never called.
        recall = offer_recall(request, toolbox, target, _load_nothing, [])
    hosted = open_hosted(request, tenant, target, toolbox, window, services, listed=early, recall=recall)
    if hosted is None:
        return ask
    hosted.offer_known()
    told = target.backend.transcribe(early, target.profile, at_start=False)
    if told.body:
        ask = msgspec.structs.replace(ask, transcript=[*ask.transcript, told.body])
    return offer_hosted(ask, toolbox, hosted.offered)


async def _load_nothing() -> list[Row]:
    return []
