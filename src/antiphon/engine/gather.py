"""From a request to a plan: the model, the window it continues, the new items, and what to ask.

It reads the store and the cache and writes neither. Invariant: when it returns, nothing about the
request itself can be refused any more; what fails later is the model server or the storage.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from antiphon.backends import Ask, Segment
from antiphon.context import (
    Toolbox,
    build_toolbox,
    flatten_name,
    load_stored_tools,
    load_tools,
)
from antiphon.context.rows import Row
from antiphon.context.truncation import DroppedItem
from antiphon.engine.asking import join_system, make_ask
from antiphon.engine.catalog import Target
from antiphon.engine.compaction_orders import Order, check_items, read_order
from antiphon.engine.continuing import (
    Origin,
    find_window,
    is_plain,
    list_sources,
    sign_prompt,
    transcribe_anew,
    transcribe_input,
)
from antiphon.engine.counting import Count
from antiphon.engine.fitting import History, find_overflow, find_size, fit, refuse_overflow
from antiphon.engine.hosted_tools import HostedTools
from antiphon.engine.ids import make_node_id
from antiphon.engine.path_rows import PathRows, load_path_rows, make_given_rows
from antiphon.engine.recall import RECALL_NAME, Recall, list_recallable, offer_recall
from antiphon.engine.references import resolve_references
from antiphon.engine.refusals import refuse_images, refuse_unsupported, unsupported
from antiphon.engine.sealed_windows import is_compaction
from antiphon.engine.sealing import leave_out_own, open_reasoning
from antiphon.engine.services import Services
from antiphon.engine.settings import Settings, encode_tools, read_settings
from antiphon.engine.steps import find_missing, offer_hosted
from antiphon.engine.updates import apply_updates
from antiphon.engine.windows import Window, restart
from antiphon.protocol.errors import RequestError, shorten_quoted
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

#: By so many first items a conversation is known that its client holds.
FIRST_ITEMS: Final = 4

LoadHistory: TypeAlias = Callable[[], Awaitable[History]]


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that a round needs to run and to be recorded.

    `request.input` is what the model is told of the input, `given` what is kept of it: they differ where a compaction
    item stands for other items.
    """

    request: CreateRequest
    given: list[Item]
    referenced: set[str]
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
    #: What the request, or the model's policy, says of compaction; and whether it is due before the model is asked.
    order: Order | None = None
    is_due: bool = False
    was_compacted: bool = False
    #: What the compactions of this response did.
    passes: list[dict[str, Any]] = field(default_factory=list)
    #: The size of the prompt, where it was looked at.
    size: Count | None = None

    @property
    def conversation_name(self) -> bytes:
        """By what a conversation is known, also one that its client holds: its first node, or else its first items."""
        first = next(iter(self.window.strand.nodes), None)
        begins = [first.encode()] if first is not None else [item.raw for item in self.given[:FIRST_ITEMS]]
        key = self.request.prompt_cache_key or ""
        names = [self.tenant, self.target.backend.name, self.target.model, key]
        return hashlib.sha256(b"\0".join([*map(str.encode, names), *begins])).digest()


async def gather(
    request: CreateRequest,
    tenant: str,
    origin: Origin,
    services: Services,
    *,
    node_id: str | None = None,
    counts_only: bool = False,
    order: Order | None = None,
) -> Plan:
    """Check the request against everything we know, and lay out the round.

    `counts_only`: it may be too long. `order`: what is done about compaction, where the request does not say it.
    """
    node_id = node_id or f"resp_{make_node_id()}"
    target = await services.catalog.find(request.model)
    refuse_unsupported(request, speaks_responses=target.backend.speaks_responses)
    order = order or read_order(request, target, services.compaction)
    since_deletion = services.windows.deletion_count
    window = await find_window(origin, tenant, target, services)
    warnings: list[tuple[str, str]] = []
    accepting = _Accepting(request, node_id, origin, tenant, target, services, warnings)
    given, window, begun = await accepting.take(window, may_be_open=order is not None and order.is_whole)
    segment = begun or transcribe_input(_list_sent(request.input, target, warnings), target, window)
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
    _hide_remembered(toolbox, request, window)
    warnings += _list_unknown_marks(request, given, window)
    tools = encode_tools(request)
    plan = Plan(
        request=request,
        given=given,
        referenced=accepting.referenced,
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
        order=None if counts_only else order,
    )
    if window.is_compacted:
        add_recall(plan, services)
    await _find_due(plan, services)
    if not plan.is_due:
        await fit_plan(plan, services, may_be_too_long=counts_only)
    return plan


def _hide_remembered(toolbox: Toolbox, request: CreateRequest, window: Window) -> None:
    """A model remembers tools of this server's that are not offered now, and no client could run a call of them."""
    names = _name_listed([*window.remembered, *request.input])
    if window.depth:
        names |= {RECALL_NAME}
    if names:
        toolbox.hidden |= names - {tool.name for tool in toolbox.offered}


def _list_unknown_marks(
    request: CreateRequest, given: Sequence[Item], window: Window
) -> list[tuple[str, str]]:
    """A warning for marks of calls that are not there."""
    marks = (request.antiphon or {}).get("marks")
    if not marks:
        return []
    calls = {get_call_id(item) for item in (*given, *request.input)}
    unknown = [call_id for call_id in marks if call_id not in calls and not window.has_call(call_id)]
    if not unknown:
        return []
    named = ", ".join(shorten_quoted(call_id) for call_id in unknown[:3])
    text = f"{len(unknown)} of the marks name no call of this conversation ({named}); marks are given by call_id."
    return [("mark_unknown", text)]


async def _find_due(plan: Plan, services: Services) -> None:
    """Note whether a compaction comes before the model is asked."""
    order = plan.order
    if order is None or not plan.request.generate:
        return
    if order.is_whole:
        plan.is_due = True
    elif order.threshold_tokens is not None:
        plan.size = await find_size(
            plan.ask,
            target=plan.target,
            counter=services.counter.of_tenant(plan.tenant),
            room_tokens=order.threshold_tokens,
        )
        plan.is_due = plan.size is not None and plan.size.tokens > order.threshold_tokens


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


class _Accepting:
    """The input of one request on its way to being what is kept of it, and what is told to the model."""

    def __init__(
        self,
        request: CreateRequest,
        node_id: str,
        origin: Origin,
        tenant: str,
        target: Target,
        services: Services,
        warnings: list[tuple[str, str]],
    ) -> None:
        self._request = request
        self._node_id = node_id
        self._origin = origin
        self._tenant = tenant
        self._target = target
        self._services = services
        self._warnings = warnings
        #: The stored nodes that the input refers to.
        self.referenced: set[str] = set()

    async def take(self, window: Window, *, may_be_open: bool) -> tuple[list[Item], Window, Segment | None]:
        """What is kept of the input, the window that it continues, and its transcript where that begins anew.

        `may_be_open`: calls may wait for their outputs. Raises for the first item that cannot be taken.
        """
        request, target = self._request, self._target
        request.input = await resolve_references(
            request.input, tenant=self._tenant, store=self._services.rounds, nodes=self.referenced
        )
        if request.generate and not may_be_open:
            check_not_empty(request)
        _refuse_lone_outputs(request.input)
        check_items(request.input)
        if any(map(is_compaction, request.input)):
            given, window, segment = await self._begin_anew(window, may_be_open=may_be_open)
        else:
            segment = None
            self._check_pairs(window, may_be_open=may_be_open)
            request.input = given = await self._resolve(request.input)
        if not target.backend.speaks_responses:
            self._warnings += apply_updates(request, window.remembered)
        if not may_be_open:
            # Otherwise the model is not shown them.
            refuse_images(request, target.profile, in_history=window.has_images)
        return given, window, segment

    def _check_pairs(self, window: Window, *, may_be_open: bool) -> None:
        check_pairing(
            self._request.input,
            open_calls=tuple(window.open_calls),
            call_types=window.call_types,
            async_calls=window.async_calls,
            approvals=list_approvals(window.remembered),
            is_earlier_call=window.has_call,
            is_earlier_item=window.has_item,
            may_be_open=may_be_open,
        )

    async def _begin_anew(
        self, window: Window, *, may_be_open: bool
    ) -> tuple[list[Item], Window, Segment | None]:
        """An input with a compaction item: path and input together are read from what it holds."""
        request = self._request
        _refuse_duplicates(request.input)
        given = await self._resolve(request.input)
        rows = make_given_rows(given, self._node_id, is_stored=request.store and self._services.lane is None)
        path = await load_path_rows(rows, self._origin, self._tenant, self._target, self._services)
        if not path.windows:
            # Another server's items before that server: it knows what they say.
            self._check_pairs(window, may_be_open=may_be_open)
            request.input = given
            return given, window, None
        self._warnings += [("transcript", note) for note in path.notes]
        request.input = path.items
        approvals = list_approvals(window.remembered)
        try:
            check_pairing(path.items, approvals=approvals, may_be_open=may_be_open)
        except RequestError as error:
            told = "A compaction item of the input holds items itself; what it stands for goes before it."
            raise RequestError(f"{error.message} {told}", param=error.param, code=error.code) from error
        fresh = restart(window, list_sources(path.windows))
        return given, fresh, transcribe_anew(path.items, self._target)

    async def _resolve(self, items: list[Item]) -> list[Item]:
        """The items with what they hold sealed or in files brought into their views."""
        if self._target.backend.speaks_responses:
            return items
        if any(map(_is_sealed, items)):
            items = [
                open_reasoning(item, self._tenant, self._services.seal_keys, f"input[{position}]")
                for position, item in enumerate(items)
            ]
        return await self._services.contents.resolve(items, where="input", new=True, warnings=self._warnings)


async def fit_plan(plan: Plan, services: Services, *, may_be_too_long: bool = False) -> None:
    """With `truncation: auto`, a plan whose prompt fits; raises where a server would cut it without a word."""
    request, target = plan.request, plan.target
    if not request.generate:
        return
    counter = services.counter.of_tenant(plan.tenant)
    if request.truncation != "auto":
        if target.profile.truncates_silently and not may_be_too_long:
            await refuse_overflow(plan.ask, target=target, counter=counter)
        return

    async def load_whole() -> History:
        return make_history(await load_plan_rows(plan, services), request, target)

    load = plan.load_history = plan.load_history or load_whole
    size = await find_overflow(plan.ask, target=target, counter=counter)
    if size is None:
        return
    fitted = await fit(plan.ask, await load(), target=target, counter=counter, size=size)
    plan.ask, plan.dropped = fitted.ask, fitted.dropped
    plan.warnings += [("transcript", note) for note in fitted.notes]
    if fitted.warning is not None:
        plan.warnings.append(fitted.warning)


async def load_plan_rows(plan: Plan, services: Services) -> PathRows:
    """Every item behind a plan's prompt."""
    is_stored = plan.request.store and services.lane is None
    given = make_given_rows(plan.given, plan.node_id, is_stored=is_stored)
    return await load_path_rows(given, plan.origin, plan.tenant, plan.target, services)


def make_history(path: PathRows, request: CreateRequest, target: Target) -> History:
    """The items behind a prompt for the truncation, each with its id, as it is transcribed."""
    rows = [(row.id, item) for row, item in zip(path.rows, path.items, strict=True)]
    start = len(rows) - path.new_count
    return History(
        items=rows[:start],
        new_items=rows[start:],
        make_system=lambda lead: join_system(target, request.instructions, lead),
    )


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
    recall: Recall | None = None,
) -> HostedTools | None:
    """The tools of the request that this server runs; None where there are none, and no call was approved.

    `listed`: lists of servers' tools beside those of the path.
    """
    if target.backend.speaks_responses:
        # Its tools are its own, and so are the calls that it asked to be approved.
        return None
    approved = any(item.type == "mcp_approval_response" for item in request.input)
    if not toolbox.hosted and not approved and not window.waiting_approvals and recall is None:
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
        recall=recall,
    )


def add_recall(plan: Plan, services: Services) -> None:
    """Offer the tool that fetches what a compaction left out of the plan's window, where that is configured."""
    if not services.compaction.recall or (plan.hosted is not None and plan.hosted.has_recall):
        return

    async def load_rows() -> list[Row]:
        return await list_recallable(await load_plan_rows(plan, services), plan.tenant, services)

    recall = offer_recall(plan.request, plan.toolbox, plan.target, load_rows, plan.warnings)
    if recall is None:
        return
    if plan.hosted is None:
        plan.hosted = open_hosted(
            plan.request, plan.tenant, plan.target, plan.toolbox, plan.window, services, recall=recall
        )
    else:
        plan.hosted.add_recall(recall)
    if plan.hosted is not None:
        plan.ask = offer_hosted(plan.ask, plan.toolbox, plan.hosted.offered)


def _offer_known(ask: Ask, toolbox: Toolbox, hosted: HostedTools) -> Ask:
    """The ask with the hosted tools that are known already; refuses a forced one that there will never be."""
    if hosted.offer_known():
        names = {tool.name for tool in (*toolbox.offered, *hosted.offered)}
        missing = find_missing(toolbox, names)
        if missing is not None:
            remedy = "It is not among the tools that can be offered here; let the model choose."
            raise unsupported("tool_choice", missing, remedy=remedy)
    return offer_hosted(ask, toolbox, hosted.offered)


def _refuse_duplicates(items: list[Item]) -> None:
    """An id names one item: of two windows under one id only one could be shown."""
    seen: set[str] = set()
    for item in items:
        item_id = get_item_id(item)
        if item_id is not None and item_id in seen:
            raise RequestError(
                f"Duplicate item found with id {shorten_quoted(item_id)}. Remove duplicate items from your input and "
                "try again.",
                param="input",
            )
        if item_id is not None:
            seen.add(item_id)


def _refuse_lone_outputs(items: list[Item]) -> None:
    for position, item in enumerate(items):
        if is_call_output(item) and not get_call_id(item):
            raise RequestError(
                f"Missing required parameter: 'input[{position}].call_id'.",
                param=f"input[{position}].call_id",
                code="missing_required_parameter",
            )
