"""From a request to a plan: the model, the window it continues, the new items, and what to ask.

It reads the store and the cache and writes neither. Invariant: when it returns, nothing about the
request itself can be refused any more; what fails later is the model server or the storage.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import msgspec

from antiphon.backends import Ask, Segment
from antiphon.context import (
    Toolbox,
    build_toolbox,
    flatten_name,
    load_stored_tools,
    load_tools,
)
from antiphon.context.truncation import DroppedItem
from antiphon.engine.asking import join_system, make_ask
from antiphon.engine.catalog import Target
from antiphon.engine.continuing import (
    Origin,
    find_window,
    is_plain,
    load_steps,
    resolve_stored,
    sign_prompt,
    transcribe_input,
)
from antiphon.engine.fitting import History, find_overflow, fit, refuse_overflow
from antiphon.engine.hosted_tools import HostedTools
from antiphon.engine.ids import make_node_id
from antiphon.engine.outputs import is_told
from antiphon.engine.paths import Step as PathStep
from antiphon.engine.references import resolve_references
from antiphon.engine.refusals import refuse_images, refuse_unsupported, unsupported
from antiphon.engine.sealing import leave_out_own, open_reasoning
from antiphon.engine.services import Services
from antiphon.engine.settings import Settings, encode_tools, read_settings
from antiphon.engine.steps import find_missing, offer_hosted
from antiphon.engine.updates import apply_updates
from antiphon.engine.windows import Window
from antiphon.protocol.errors import RequestError
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import (
    AdditionalTools,
    Item,
    McpListTools,
    Reasoning,
    ToolSearchOutput,
    get_call_id,
    get_item_id,
    is_call_output,
)
from antiphon.protocol.requests import CreateRequest, check_not_empty
from antiphon.protocol.tools import McpTool, decode_tools
from antiphon.sessions.pairing import check_pairing, list_approvals

LoadHistory: TypeAlias = Callable[[], Awaitable[History]]


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that a round needs to run and to be recorded."""

    request: CreateRequest
    tenant: str
    node_id: str
    origin: Origin
    target: Target
    settings: Settings
    tools: bytes | None
    window: Window
    since_deletion: int
    segment: Segment
    ask: Ask
    made_with: bytes
    toolbox: Toolbox
    hosted: HostedTools | None = None
    #: Whether the ask tells of every tool; those of a server that is asked for its list later are not in it.
    counts_all: bool = True
    warnings: list[tuple[str, str]] = field(default_factory=list)
    #: Gives the items behind the ask, with `truncation: auto`: what does not fit can be dropped from them.
    load_history: LoadHistory | None = None
    #: What of them the model is not shown.
    dropped: tuple[DroppedItem, ...] = ()


async def gather(
    request: CreateRequest,
    tenant: str,
    origin: Origin,
    services: Services,
    *,
    node_id: str | None = None,
    counts_only: bool = False,
) -> Plan:
    """Check the request against everything we know, and lay out the round; `counts_only`: it may be too long."""
    node_id = node_id or f"resp_{make_node_id()}"
    target = await services.catalog.find(request.model)
    refuse_unsupported(request, speaks_responses=target.backend.speaks_responses)
    since_deletion = services.windows.deletion_count
    window = await find_window(origin, tenant, target, services)
    warnings: list[tuple[str, str]] = []
    await _accept_input(request, tenant, target, window, services, warnings)
    segment = transcribe_input(_list_sent(request.input, target, warnings), target, window)
    if segment.refusal:
        raise RequestError(segment.refusal, param="input", code="invalid_value")
    warnings += [("transcript", text) for text in dict.fromkeys((*window.notes, *segment.warnings))]
    toolbox = open_toolbox(request, target, window, services)
    await _check_grammars(request, tenant, target, services)
    warnings += toolbox.warnings
    ask = make_ask(request, target, window, segment, toolbox, warnings)
    hosted = open_hosted(request, tenant, target, toolbox, window, services)
    if hosted is not None:
        hosted.check_approvals()
        ask = _offer_known(ask, toolbox, hosted)
    # A model remembers tools of servers that are not offered now, and no client could run a call of them.
    listed = _name_listed([*window.remembered, *request.input])
    if listed:
        toolbox.hidden |= listed - {tool.name for tool in toolbox.offered}
    tools = encode_tools(request)
    plan = Plan(
        request=request,
        tenant=tenant,
        node_id=node_id,
        origin=origin,
        target=target,
        settings=read_settings(request, ask.effort),
        tools=tools,
        window=window,
        since_deletion=since_deletion,
        segment=segment,
        ask=ask,
        made_with=sign_prompt(target, request.instructions, tools, msgspec.to_builtins(request.tool_choice)),
        toolbox=toolbox,
        hosted=hosted,
        counts_all=hosted is None or hosted.offer_known(),
        warnings=warnings,
    )
    await _fit_plan(plan, services, may_be_too_long=counts_only)
    return plan


async def _check_grammars(request: CreateRequest, tenant: str, target: Target, services: Services) -> None:
    """Raise `RequestError` for the first grammar that is none, in the tools or in what items bring."""
    grammars = services.grammars.of_tenant(tenant)
    await grammars.check_tools(request.tools)
    if target.backend.speaks_responses:
        return
    for position, item in enumerate(request.input):
        if isinstance(item.value, AdditionalTools | ToolSearchOutput):
            where = f"input[{position}].tools"
            tools = decode_tools(msgspec.json.encode(item.value.tools), where)
            await grammars.check_tools(tools, where)


async def _accept_input(
    request: CreateRequest,
    tenant: str,
    target: Target,
    window: Window,
    services: Services,
    warnings: list[tuple[str, str]],
) -> None:
    """Make the input what is kept of it and shown to the model; raises for the first item that cannot be taken."""
    request.input = await resolve_references(request.input, tenant=tenant, store=services.rounds)
    if request.generate:
        check_not_empty(request)
    _refuse_lone_outputs(request.input)
    check_pairing(
        request.input,
        open_calls=tuple(window.open_calls),
        call_types=window.call_types,
        async_calls=window.async_calls,
        approvals=list_approvals(window.remembered),
        is_earlier_call=window.has_call,
        is_earlier_item=window.has_item,
    )
    request.input = await _resolve_input(request.input, tenant, target, services, warnings)
    if not target.backend.speaks_responses:
        warnings += apply_updates(request, window.remembered)
    refuse_images(request, target.profile, in_history=window.has_images)


async def _fit_plan(plan: Plan, services: Services, *, may_be_too_long: bool) -> None:
    """With `truncation: auto`, a plan whose prompt fits; raises where a server would cut it without a word."""
    request, target = plan.request, plan.target
    if not request.generate:
        return
    counter = services.counter.of_tenant(plan.tenant)
    if request.truncation != "auto":
        if target.profile.truncates_silently and not may_be_too_long:
            await refuse_overflow(plan.ask, target=target, counter=counter)
        return
    node_id, origin, tenant = plan.node_id, plan.origin, plan.tenant

    async def load() -> History:
        return await load_history(request, node_id, origin, tenant, target, services)

    plan.load_history = load
    size = await find_overflow(plan.ask, target=target, counter=counter)
    if size is None:
        return
    fitted = await fit(plan.ask, await load(), target=target, counter=counter, size=size)
    plan.ask, plan.dropped = fitted.ask, fitted.dropped
    plan.warnings += [("transcript", note) for note in fitted.notes]
    if fitted.warning is not None:
        plan.warnings.append(fitted.warning)


async def load_history(
    request: CreateRequest, node_id: str, origin: Origin, tenant: str, target: Target, services: Services
) -> History:
    """Every item behind a prompt, with its id, as it is transcribed."""
    steps, _ = await load_steps(origin, tenant, services)
    items: list[tuple[str, Item]] = []
    for step in steps:
        resolved, _ = await resolve_stored(step, tenant, target, services)
        items += _list_named(resolved, target)
    return History(
        items=items,
        new_items=[
            (get_item_id(item) or derive_item_id(item.type, node_id, position), item)
            for position, item in enumerate(request.input)
        ],
        make_system=lambda lead: join_system(target, request.instructions, lead),
    )


def _list_named(step: PathStep, target: Target) -> list[tuple[str, Item]]:
    """The items of a node that the model is told, each with its id."""
    made = zip(step.output_ids, step.output, strict=True)
    relays = target.backend.speaks_responses
    return [
        *zip(step.input_ids, step.input, strict=True),
        *(row for row in made if is_told(row[1], speaks_responses=relays)),
    ]


async def _resolve_input(
    items: list[Item],
    tenant: str,
    target: Target,
    services: Services,
    warnings: list[tuple[str, str]],
) -> list[Item]:
    """The items with what they hold sealed or in files brought into their views."""
    if target.backend.speaks_responses:
        return items
    if any(map(_is_sealed, items)):
        items = [
            open_reasoning(item, tenant, services.seal_keys, f"input[{position}]")
            for position, item in enumerate(items)
        ]
    return await services.contents.resolve(items, where="input", new=True, warnings=warnings)


def _list_sent(items: list[Item], target: Target, warnings: list[tuple[str, str]]) -> list[Item]:
    """The items that go upstream; all of them are kept."""
    if not target.backend.speaks_responses:
        return items
    sent, note = leave_out_own(items)
    if note is not None:
        warnings.append(("transcript", note))
    return sent


def _is_sealed(item: Item) -> bool:
    return isinstance(item.value, Reasoning) and item.value.encrypted_content is not None


def open_toolbox(request: CreateRequest, target: Target, window: Window, services: Services) -> Toolbox:
    """The tools that the model is offered: the request's, and those that the path brings."""
    if target.backend.speaks_responses:
        # The tools go upstream as they are; the model's calls come back as items.
        return Toolbox(offered=(), hidden=frozenset(), choice="auto", forced=None, hosted=(), warnings=[])
    remembered = window.remembered
    if not (request.tools or remembered or request.tool_choice_given) and all(map(is_plain, request.input)):
        return Toolbox(offered=(), hidden=frozenset(), choice="none", forced=None, hosted=(), warnings=[])
    declared = {tool.server_label for tool in request.tools if isinstance(tool, McpTool)}
    stored, warnings = load_stored_tools(remembered)
    brought = [
        tool
        for tool in load_tools(request.input)
        # The request's own declaration counts: it alone may hold credentials.
        if not (isinstance(tool, McpTool) and tool.server_label in declared)
    ]
    toolbox = build_toolbox(
        [*request.tools, *brought],
        stored=stored,
        choice=request.tool_choice,
        choice_given=request.tool_choice_given,
        model=request.model,
        profile=target.profile,
        can_search=services.search is not None,
        can_call_mcp=services.mcp is not None,
        declared=len(request.tools),
    )
    toolbox.warnings[:0] = warnings
    return toolbox


def _name_listed(items: Iterable[Item]) -> frozenset[str]:
    """The flat names of all tools that MCP servers on the path have listed."""
    return frozenset(
        flatten_name(item.value.server_label, tool.name)
        for item in items
        if isinstance(item.value, McpListTools)
        for tool in item.value.tools
    )


def open_hosted(
    request: CreateRequest,
    tenant: str,
    target: Target,
    toolbox: Toolbox,
    window: Window,
    services: Services,
    *,
    listed: Sequence[Item] = (),
) -> HostedTools | None:
    """The tools of the request that this server runs; None where there are none, and no call was approved.

    `listed`: lists of servers' tools beside those of the path.
    """
    if target.backend.speaks_responses:
        # Its tools are its own, and so are the calls that it asked to be approved.
        return None
    approved = any(item.type == "mcp_approval_response" for item in request.input)
    if not toolbox.hosted and not approved and not window.waiting_approvals:
        return None
    return HostedTools(
        toolbox=toolbox,
        remembered=[*window.remembered, *listed],
        input_items=request.input,
        search=services.search,
        mcp=services.mcp,
        max_calls=request.max_tool_calls,
        take_approval=partial(services.approvals.take, tenant),
        waiting_approvals=window.waiting_approvals,
    )


def _offer_known(ask: Ask, toolbox: Toolbox, hosted: HostedTools) -> Ask:
    """The ask with the hosted tools that are known already; refuses a forced one that there will never be."""
    if hosted.offer_known():
        names = {tool.name for tool in (*toolbox.offered, *hosted.offered)}
        missing = find_missing(toolbox, names)
        if missing is not None:
            remedy = "It is not among the tools that can be offered here; let the model choose."
            raise unsupported("tool_choice", missing, remedy=remedy)
    return offer_hosted(ask, toolbox, hosted.offered)


def _refuse_lone_outputs(items: list[Item]) -> None:
    for position, item in enumerate(items):
        if is_call_output(item) and not get_call_id(item):
            raise RequestError(
                f"Missing required parameter: 'input[{position}].call_id'.",
                param=f"input[{position}].call_id",
                code="missing_required_parameter",
            )
