"""From a request to a plan: the model, the window it continues, the new items, and what to ask.

It reads the store and the cache and writes neither. Invariant: when it returns, nothing about the
request itself can be refused any more; what fails later is the model server or the storage.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from antiphon.backends import Ask, Segment
from antiphon.context import (
    Profile,
    Toolbox,
    build_toolbox,
    flatten_name,
    load_stored_tools,
    load_tools,
    lower_call,
)
from antiphon.context.truncation import DroppedItem
from antiphon.engine.catalog import Target
from antiphon.engine.fitting import History, find_overflow, fit, refuse_overflow
from antiphon.engine.hosted_tools import HostedTools
from antiphon.engine.ids import make_node_id
from antiphon.engine.outputs import is_told, list_answered, list_remembered, list_told
from antiphon.engine.paths import Step as PathStep
from antiphon.engine.paths import mend_path, read_path
from antiphon.engine.references import resolve_references
from antiphon.engine.refusals import has_image, refuse_images, refuse_unsupported, unsupported
from antiphon.engine.sealing import leave_out_own, open_reasoning, reopen_reasoning
from antiphon.engine.services import Services
from antiphon.engine.settings import Settings, decode_outcome, decode_settings, encode_tools, read_settings
from antiphon.engine.steps import find_missing, offer_hosted
from antiphon.engine.updates import apply_updates
from antiphon.engine.windows import Step, Window, extend, start_window
from antiphon.protocol.errors import RequestError
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import (
    AdditionalTools,
    Item,
    McpApprovalResponse,
    McpListTools,
    Message,
    Reasoning,
    ToolSearchOutput,
    get_call_id,
    get_item_id,
    is_call,
    is_call_output,
)
from antiphon.protocol.requests import CreateRequest, Effort, check_not_empty
from antiphon.protocol.tools import McpTool, decode_tools
from antiphon.sessions import CONTINUABLE
from antiphon.sessions.pairing import check_pairing, list_approvals
from antiphon.store import Record

#: A long path is rebuilt in portions of this many nodes, so that other clients need not wait for all of it.
NODES_AT_ONCE = 128


LoadHistory: TypeAlias = Callable[[], Awaitable[History]]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a request continues: a response, or the tip of a conversation (which may be empty)."""

    node: str | None = None
    conversation: str | None = None
    #: Whether what was deleted from the path is passed over; in a conversation it always is.
    mends: bool = False

    @property
    def passes_over_deleted(self) -> bool:
        """Whether the path may have gaps."""
        return self.mends or self.conversation is not None


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
    since_deletion = services.cache.deletion_count
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
        made_with=_sign(target, request.instructions, tools, msgspec.to_builtins(request.tool_choice)),
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
    request.input = await resolve_references(request.input, tenant=tenant, store=services.store)
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


def join_system(target: Target, instructions: str | None, lead: str) -> str:
    """The whole system text of a prompt."""
    return "\n\n".join([text for text in (target.system_prompt, instructions, lead) if text])


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
    if not (request.tools or remembered or request.tool_choice_given) and all(map(_is_plain, request.input)):
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


async def find_window(origin: Origin, tenant: str, target: Target, services: Services) -> Window:
    """What the model saw and said up to the origin, from memory or made anew."""
    key = f"{target.backend.name}\n{target.profile.name}\n{_transcript_traits(target.profile)}"
    if origin.passes_over_deleted:
        # Things may have been deleted from a conversation; a chain has none such.
        key += "\nconversation"
    if origin.node is None:
        return start_window(key)
    window = services.cache.get(tenant, origin.node, key)
    if window is not None:
        return window
    since_deletion = services.cache.deletion_count
    window = await _rebuild(origin, tenant, target, start_window(key), services)
    services.cache.put(tenant, origin.node, window, since_deletion=since_deletion)
    return window


def _transcript_traits(profile: Profile) -> str:
    """What of a profile changes the bytes of a transcript."""
    tools = "native" if profile.tools == "native" else "plain"
    return f"{profile.system_messages} {profile.reasoning_field} {tools}"


async def load_steps(origin: Origin, tenant: str, services: Services) -> tuple[list[PathStep], list[str]]:
    """The items of the path that a request continues, and what was left out of them, in words."""
    if origin.node is None:
        return [], []
    path = await services.store.load_path(tenant, origin.node, skip_deleted=origin.passes_over_deleted)
    if path is None:
        raise await _explain_missing(origin.node, tenant, services)
    if origin.passes_over_deleted:
        return mend_path(read_path(path))
    tip = path[-1]
    if tip.kind != "response":
        raise make_unknown_parent(f"Previous response with id '{origin.node}' not found.")
    if tip.status not in CONTINUABLE:
        raise make_unknown_parent(
            f"Previous response with id '{origin.node}' cannot be continued: its status is '{tip.status}'. "
            "Continue from an earlier response."
        )
    return read_path(path), []


async def _explain_missing(parent: str, tenant: str, services: Services) -> RequestError:
    job = await services.store.load_job(tenant, parent)
    if job is None:
        return make_unknown_parent(f"Previous response with id '{parent}' not found.")
    return make_unknown_parent(
        f"Previous response with id '{parent}' cannot be continued yet: its status is '{job.status}'. "
        "Wait until it has ended."
    )


async def _rebuild(origin: Origin, tenant: str, target: Target, window: Window, services: Services) -> Window:
    """The window of a stored path, made from its items in one query."""
    steps, notes = await load_steps(origin, tenant, services)
    record = await services.store.load(tenant, origin.node) if origin.node is not None else None
    for position, step in enumerate(steps):
        if position % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            await asyncio.sleep(0)
        is_tip = position == len(steps) - 1
        resolved, unseen = await resolve_stored(step, tenant, target, services)
        # After deletions the last count is of more than there is now.
        counted = record if is_tip and not origin.passes_over_deleted else None
        made = _make_stored_step(resolved, target, window, counted)
        told = (*made.notes, *unseen, *(notes if is_tip else ()))
        window = extend(window, replace(made, notes=told) if told else made)
    return window


async def resolve_stored(
    step: PathStep, tenant: str, target: Target, services: Services
) -> tuple[PathStep, list[str]]:
    """A stored node's items as a model is shown them, and what of them it cannot be shown, in words."""
    notes: list[str] = []
    if target.backend.speaks_responses:
        return step, notes

    async def resolve(items: list[Item], where: str) -> list[Item]:
        opened: list[Item] = []
        for item in items:
            view, note = reopen_reasoning(item, tenant, services.seal_keys)
            opened.append(view)
            if note is not None:
                notes.append(note)
        return await services.contents.resolve(opened, where=where, new=False)

    given = await resolve(step.input, "input")
    made = await resolve(step.output, "output")
    return PathStep(step.node, given, made, step.input_ids, step.output_ids), notes


def transcribe_input(items: list[Item], target: Target, window: Window) -> Segment:
    """What a round says, as the messages that continue its window."""
    return target.backend.transcribe(
        items,
        target.profile,
        at_start=window.depth == 0,
        open_calls=window.open_calls,
        async_calls=window.async_calls,
    )


def _make_stored_step(step: PathStep, target: Target, window: Window, record: Record | None) -> Step:
    sent, unseen = leave_out_own(step.input) if target.backend.speaks_responses else (step.input, None)
    segment = transcribe_input(sent, target, window)
    if unseen is not None:
        segment = msgspec.structs.replace(segment, warnings=(*segment.warnings, unseen))
    outcome = decode_outcome(record.outcome) if record is not None else None
    return make_step(
        step.node.id,
        target,
        window,
        segment,
        step.input,
        step.output,
        prompt_tokens=outcome.last_prompt_tokens if outcome is not None else None,
        made_with=_sign_stored(target, record) if record is not None and record.kind == "response" else b"",
    )


def make_step(
    node_id: str,
    target: Target,
    window: Window,
    segment: Segment,
    items: list[Item],
    output: list[Item],
    *,
    prompt_tokens: int | None = None,
    made_with: bytes = b"",
) -> Step:
    """What a round adds to its window: its new items, then what the model made of them."""
    if not window.open_calls and all(map(_is_plain, items)) and all(map(_is_answer, output)):
        # Most rounds are words alone.
        answer = target.backend.transcribe(output, target.profile, at_start=False)
        return Step(
            node_id=node_id.partition("_")[2],
            pieces=tuple(piece for piece in (segment.body, answer.body) if piece),
            lead=segment.lead,
            item_ids=_list_foreign_ids(node_id, (*items, *output)),
            has_images=any(map(has_image, items)),
            waiting_approvals=_list_waiting(node_id, window, items),
            notes=(*segment.warnings, *answer.warnings),
            prompt_tokens=prompt_tokens,
            prompt_made_with=made_with,
        )
    relays = target.backend.speaks_responses
    replayed, unheard = list_told(
        [item for item in output if not _is_unfinished_call(item)], speaks_responses=relays
    )
    sent, unseen = leave_out_own(replayed) if relays else (replayed, None)
    answer = target.backend.transcribe(sent, target.profile, at_start=False)
    everything = [*items, *replayed]
    calls = {
        call_id: _name_call(item) for item in everything if is_call(item) and (call_id := get_call_id(item))
    }
    late = tuple(
        call_id
        for item in everything
        if getattr(item.value, "is_async", None) and (call_id := get_call_id(item))
    )
    answered = {get_call_id(item) for item in list_answered(items, replayed)}
    open_calls = {
        call_id: name
        for call_id, name in {**window.open_calls, **calls}.items()
        if call_id not in answered and call_id not in late
    }
    return Step(
        node_id=node_id.partition("_")[2],
        pieces=tuple(piece for piece in (segment.body, answer.body) if piece),
        lead=segment.lead,
        calls=tuple(calls),
        item_ids=_list_foreign_ids(node_id, (*items, *output)),
        open_calls=open_calls,
        call_types=_list_call_types(window, everything, open_calls),
        has_images=any(has_image(item) for item in items),
        remembered=list_remembered(items, replayed, node_id, speaks_responses=relays),
        waiting_approvals=_list_waiting(node_id, window, items),
        async_calls=late,
        notes=(
            *segment.warnings,
            *answer.warnings,
            *_note_unfinished(output),
            *unheard,
            *((unseen,) if unseen is not None else ()),
        ),
        prompt_tokens=prompt_tokens,
        prompt_made_with=made_with,
    )


def _is_plain(item: Item) -> bool:
    return item.type == "message"


def _is_answer(item: Item) -> bool:
    value = item.value
    return isinstance(value, Message) and value.role == "assistant"


def _list_foreign_ids(node_id: str, items: Iterable[Item]) -> tuple[str, ...]:
    """The ids that are not of our own form; those are known by the node."""
    own = node_id.partition("_")[2]
    return tuple(item_id for item in items if (item_id := get_item_id(item)) and own not in item_id)


def _list_waiting(node_id: str, window: Window, items: Sequence[Item]) -> tuple[str, ...]:
    """The approvals that wait for a response behind a node: those that items without one have brought."""
    if not node_id.startswith("items_"):
        return ()
    added = [item.value.approval_request_id for item in items if isinstance(item.value, McpApprovalResponse)]
    return (*window.waiting_approvals, *added)


def _list_call_types(window: Window, items: Sequence[Item], open_calls: Mapping[str, str]) -> dict[str, str]:
    """The item types of the open calls that are no function calls."""
    types = dict(window.call_types)
    types.update(
        (call_id, item.type)
        for item in items
        if item.type != "function_call" and is_call(item) and (call_id := get_call_id(item))
    )
    return {call_id: kind for call_id, kind in types.items() if call_id in open_calls}


def _name_call(item: Item) -> str:
    lowered = lower_call(item)
    return lowered.name if lowered is not None else item.type


def _note_unfinished(output: list[Item]) -> list[str]:
    return [
        f"The call {get_call_id(item)} was cut off before its arguments were whole; it is not shown to the model."
        for item in output
        if _is_unfinished_call(item)
    ]


def _is_unfinished_call(item: Item) -> bool:
    """A call that was cut off is kept and can be read, but no model is shown half a call."""
    return is_call(item) and getattr(item.value, "status", None) == "incomplete"


def make_unknown_parent(message: str) -> RequestError:
    """The refusal to continue from a response that is not there or cannot be continued."""
    return RequestError(message, param="previous_response_id", code="previous_response_not_found")


def _refuse_lone_outputs(items: list[Item]) -> None:
    for position, item in enumerate(items):
        if is_call_output(item) and not get_call_id(item):
            raise RequestError(
                f"Missing required parameter: 'input[{position}].call_id'.",
                param=f"input[{position}].call_id",
                code="missing_required_parameter",
            )


def make_ask(
    request: CreateRequest,
    target: Target,
    window: Window,
    segment: Segment,
    toolbox: Toolbox,
    warnings: list[tuple[str, str]],
) -> Ask:
    """What is asked of the backend; `warnings` get what it cannot be asked."""
    profile = target.profile
    # Such a server is told all of the request, and decides itself what it can honour.
    whole = target.backend.speaks_responses
    lead = segment.lead if window.depth == 0 else window.lead
    ask = Ask(
        model=target.model,
        profile=profile,
        system=join_system(target, request.instructions, lead),
        transcript=[*window.pieces, segment.body] if segment.body else window.pieces,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        text_format=request.text.format if request.text.format.type != "text" else None,
        verbosity=request.text.verbosity if whole else _choose_verbosity(request, profile),
        effort=_get_effort(request) if whole else _choose_effort(request, profile, warnings),
        hints={} if whole else _choose_hints(request, profile),
        tools=[tool.function for tool in toolbox.offered],
        tool_choice=toolbox.choice,
        forced_tool=toolbox.forced,
        parallel_tool_calls=request.parallel_tool_calls if toolbox.offered or toolbox.hosted else None,
        request=request,
    )
    if "message.output_text.logprobs" in request.include or request.top_logprobs:
        ask.top_logprobs = request.top_logprobs or 0
    if profile.tools == "schema" and toolbox.offered and ask.top_logprobs is not None:
        ask.top_logprobs = None
        text = (
            "The model calls tools by constrained JSON, whose log probabilities are not those of the answer."
        )
        warnings.append(("logprobs_left_out", text))
    return ask


def _choose_verbosity(request: CreateRequest, profile: Profile) -> str | None:
    asked = request.text.verbosity
    if profile.verbosity:
        return asked
    if asked not in (None, "medium"):
        raise unsupported("text.verbosity", f"'{asked}' for this model")
    return None


#: All efforts, weakest first; a profile names those that its server knows.
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _choose_effort(request: CreateRequest, profile: Profile, warnings: list[tuple[str, str]]) -> str | None:
    """The nearest effort that the model knows; the response echoes it, and says when it is another."""
    asked = _get_effort(request)
    if asked is None:
        return None
    if not profile.efforts:
        warnings.append(("effort_left_out", f"The model has no reasoning effort; '{asked}' was left out."))
        return None
    if asked in profile.efforts:
        return asked
    rank = _EFFORTS.index(asked)
    known = [effort for effort in _EFFORTS if effort in profile.efforts]
    nearest = min(known, key=lambda effort: abs(_EFFORTS.index(effort) - rank))
    warnings.append(("effort_changed", f"The model knows no effort '{asked}'; '{nearest}' was used."))
    return nearest


def _get_effort(request: CreateRequest) -> Effort | None:
    return request.reasoning.effort if request.reasoning is not None else None


def _choose_hints(request: CreateRequest, profile: Profile) -> dict[str, object]:
    hints = {name: getattr(request, name) for name in profile.hints}
    return {name: value for name, value in hints.items() if value is not None}


def _sign(
    target: Target, instructions: str | None, tools: bytes | None, tool_choice: str | dict[str, Any]
) -> bytes:
    """What a prompt is made of beside the path, hashed: two rounds with the same one differ by appending alone."""
    if instructions is None and tools is None:
        return target.model.encode()
    # The choice among tools decides which of them the prompt tells of.
    chosen = msgspec.json.encode(tool_choice) if tools is not None else b""
    parts = (target.model.encode(), (instructions or "").encode(), tools or b"", chosen)
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def _sign_stored(target: Target, record: Record) -> bytes:
    instructions = record.instructions.decode() if record.instructions is not None else None
    return _sign(target, instructions, record.tools, decode_settings(record.settings).tool_choice)
