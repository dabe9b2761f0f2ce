"""What a request continues: the path of stored nodes behind it, and the window that a model has of that path.

It reads the store and the cache; only windows that were made anew go into the cache. Invariant: the same path gives
the same bytes, whether its window was kept or made anew.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from antiphon.backends import Segment
from antiphon.context import (
    Profile,
    lower_call,
)
from antiphon.context.rows import Row
from antiphon.context.sealed_window import SealedWindow, expand
from antiphon.engine.catalog import Target
from antiphon.engine.outputs import is_told, list_answered, list_remembered, list_told
from antiphon.engine.paths import Step as PathStep
from antiphon.engine.paths import mend_path, read_path
from antiphon.engine.refusals import has_image
from antiphon.engine.sealed_windows import WindowOpener, is_compaction, is_own_seal
from antiphon.engine.sealing import leave_out_own, reopen_reasoning
from antiphon.engine.services import Services
from antiphon.engine.settings import decode_outcome, decode_settings
from antiphon.engine.windows import Step, Window, extend, restart, start_window
from antiphon.protocol.errors import RequestError, shorten_quoted
from antiphon.protocol.items import (
    Item,
    McpApprovalResponse,
    Message,
    get_call_id,
    get_item_id,
    is_call,
)
from antiphon.sessions import CONTINUABLE
from antiphon.store import Record

#: A long path is rebuilt in portions of this many nodes, so that other clients need not wait for all of it.
NODES_AT_ONCE = 128
#: Items of any number and size wait for what they are said with, in the first nodes of a path; behind those, so many
#: items and bytes at most: they are read anew for every node that comes.
FREELY_WAITING_NODES = 8
WAITING_AT_MOST = 256
WAITING_BYTES_AT_MOST = 1024 * 1024


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


async def find_window(origin: Origin, tenant: str, target: Target, services: Services) -> Window:
    """What the model saw and said up to the origin, from memory or made anew."""
    key = f"{target.backend.name}\n{target.profile.name}\n{_transcript_traits(target.profile)}"
    if origin.passes_over_deleted:
        # Things may have been deleted from a conversation; a chain has none such.
        key += "\nconversation"
    if origin.node is None:
        return start_window(key)
    window = services.windows.get(tenant, origin.node, key)
    if window is not None:
        return window
    since_deletion = services.windows.deletion_count
    window = await _rebuild(origin, tenant, target, start_window(key), services)
    services.windows.put(tenant, origin.node, window, since_deletion=since_deletion)
    return window


def _transcript_traits(profile: Profile) -> str:
    """What of a profile changes the bytes of a transcript."""
    tools = "native" if profile.tools == "native" else "plain"
    return f"{profile.system_messages} {profile.reasoning_field} {tools}"


async def load_steps(
    origin: Origin, tenant: str, services: Services, *, opens: bool = True
) -> tuple[list[PathStep], list[str]]:
    """The items of the path that a request continues, and what was left out of them, in words.

    `opens`: its compaction items open, so that outputs may answer calls that are inside.
    """
    if origin.node is None:
        return [], []
    path = await services.rounds.load_path(tenant, origin.node, skip_deleted=origin.passes_over_deleted)
    if path is None:
        raise await _explain_missing(origin.node, tenant, services)
    if origin.passes_over_deleted:
        return mend_path(read_path(path), holds_windows=opens)
    tip = path[-1]
    if tip.kind != "response":
        raise make_unknown_parent(f"Previous response with id '{shorten_quoted(origin.node)}' not found.")
    if tip.status not in CONTINUABLE:
        raise make_unknown_parent(
            f"Previous response with id '{origin.node}' cannot be continued: its status is '{tip.status}'. "
            "Continue from an earlier response."
        )
    return read_path(path), []


async def _explain_missing(parent: str, tenant: str, services: Services) -> RequestError:
    job = await services.rounds.load_job(tenant, parent)
    if job is None:
        return make_unknown_parent(f"Previous response with id '{shorten_quoted(parent)}' not found.")
    return make_unknown_parent(
        f"Previous response with id '{parent}' cannot be continued yet: its status is '{job.status}'. "
        "Wait until it has ended."
    )


async def _rebuild(
    origin: Origin, tenant: str, target: Target, start: Window, services: Services, *, opens: bool = True
) -> Window:
    """The window of a stored path, made from its items in one query; `opens`: as in `load_steps`."""
    window = start
    steps, notes = await load_steps(origin, tenant, services, opens=opens)
    record = await services.rounds.load(tenant, origin.node) if origin.node is not None else None
    for position, step in enumerate(steps):
        if position % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            await asyncio.sleep(0)
        is_tip = position == len(steps) - 1
        if has_compaction(step):
            counted = record if is_tip and not origin.passes_over_deleted else None
            begun = await begin_anew(steps[: position + 1], tenant, target, window, services, record=counted)
            if begun.step is not None:
                told = (*begun.step.notes, *begun.notes, *(notes if is_tip else ()))
                window = extend(begun.window, replace(begun.step, notes=told))
                continue
            if begun.notes and opens and origin.passes_over_deleted:
                return await _rebuild(origin, tenant, target, start, services, opens=False)
            notes = [*notes, *begun.notes]
            if begun.notes:
                # What was counted then is not what there is now, and what does not open says nothing.
                record = None
                step = _leave_out_seals(step)
        resolved, unseen = await resolve_stored(step, tenant, target, services)
        # After deletions the last count is of more than there is now.
        counted = record if is_tip and not origin.passes_over_deleted else None
        made = _make_stored_step(resolved, target, window, counted)
        told = (*made.notes, *unseen, *(notes if is_tip else ()))
        window = extend(window, replace(made, notes=told) if told else made)
    return window


def _leave_out_seals(step: PathStep) -> PathStep:
    given = [row for row in zip(step.input_ids, step.input, strict=True) if not is_own_seal(row[1])]
    made = [row for row in zip(step.output_ids, step.output, strict=True) if not is_own_seal(row[1])]
    return PathStep(
        step.node,
        [item for _, item in given],
        [item for _, item in made],
        [item_id for item_id, _ in given],
        [item_id for item_id, _ in made],
    )


class Begun(msgspec.Struct):
    """A path that begins anew at its last node's compaction; `step` is None where none of it opens."""

    window: Window
    step: Step | None = None
    segment: Segment = msgspec.field(default_factory=lambda: Segment("", b""))
    #: What the model is told of the path up to the answer, with the rows behind it.
    rows: Sequence[Row] = ()
    items: Sequence[Item] = ()
    #: What the compaction items stand for.
    superseded: Sequence[Row] = ()
    notes: Sequence[str] = ()


def has_compaction(step: PathStep) -> bool:
    """Whether a node holds a compaction item."""
    return any(map(is_compaction, (*step.input, *step.output)))


async def begin_anew(
    steps: Sequence[PathStep],
    tenant: str,
    target: Target,
    window: Window,
    services: Services,
    *,
    record: Record | None = None,
) -> Begun:
    """The window of a path whose last node holds a compaction, made from its items; `window` is that of the rest.

    `record`: the last node, where its counts are of what the path still is. The prompt of that node is all that stands
    up to its last compaction; what the node made behind it is the answer.
    """
    *earlier, last = steps
    output = list_output_rows(last, target)
    prompt_end = max((at + 1 for at, row in enumerate(output) if is_compaction(row.item)), default=0)
    own = [*list_input_rows(last), *output[:prompt_end]]
    rows = [*(row for step in earlier for row in list_rows(step, target)), *own]
    opener = make_opener(tenant, target, services)
    windows, notes = await opener.open_kept(rows, [step.node for step in steps])
    if not any(row.id in windows for row in own):
        return Begun(window, notes=notes)
    expansion = expand(rows, windows)
    items, unseen = await resolve_kept([row.item for row in expansion.rows], tenant, target, services)
    answer, unheard = await resolve_kept([row.item for row in output[prompt_end:]], tenant, target, services)
    fresh = restart(window, list_sources(expansion.windows))
    segment = transcribe_anew(items, target)
    outcome = decode_outcome(record.outcome) if record is not None else None
    step = make_step(
        last.node.id,
        target,
        fresh,
        segment,
        items,
        answer,
        prompt_tokens=outcome.last_prompt_tokens if outcome is not None else None,
        made_with=_sign_stored(target, record) if record is not None and record.kind == "response" else b"",
    )
    return Begun(
        fresh, step, segment, expansion.rows, items, expansion.superseded, [*notes, *unseen, *unheard]
    )


def list_sources(windows: Mapping[str, SealedWindow]) -> list[str]:
    """The ids of the nodes that opened windows were made from."""
    return [node.id for window in windows.values() for node in window.nodes]


def transcribe_anew(items: Sequence[Item], target: Target) -> Segment:
    """The prompt of a path that begins anew, from all the items that the model is told."""
    sent, unseen = leave_out_own(list(items)) if target.backend.speaks_responses else (list(items), None)
    segment = target.backend.transcribe(sent, target.profile, at_start=True, async_calls=_list_late(items))
    if unseen is not None:
        segment = msgspec.structs.replace(segment, warnings=(*segment.warnings, unseen))
    return segment


def make_opener(tenant: str, target: Target, services: Services) -> WindowOpener:
    """What opens the compaction items of a path."""
    return WindowOpener(
        tenant,
        keys=services.seal_keys,
        opened=services.opened,
        store=services.rounds,
        deletion_count=services.windows.deletion_count,
        accepts_ollama=services.compaction.accepts_ollama,
        passes_foreign=target.backend.speaks_responses,
    )


def list_rows(step: PathStep, target: Target) -> list[Row]:
    """What a model is told of a stored node."""
    return [*list_input_rows(step), *list_output_rows(step, target)]


def list_input_rows(step: PathStep) -> list[Row]:
    """The items that a node was given."""
    return [
        Row(id=item_id, item=item, node=step.node.id)
        for item_id, item in zip(step.input_ids, step.input, strict=True)
    ]


def list_output_rows(step: PathStep, target: Target) -> list[Row]:
    """What of a node's output a model is told: nothing that only a client may say, and no half call."""
    relays = target.backend.speaks_responses
    return [
        Row(id=item_id, item=item, node=step.node.id)
        for item_id, item in zip(step.output_ids, step.output, strict=True)
        if is_told(item, speaks_responses=relays) and not _is_unfinished_call(item)
    ]


def _list_late(items: Iterable[Item]) -> set[str]:
    """The calls that may be answered late: the output of one that is left out has no call to stand behind."""
    return {
        call_id for item in items if getattr(item.value, "is_async", None) and (call_id := get_call_id(item))
    }


async def resolve_stored(
    step: PathStep, tenant: str, target: Target, services: Services
) -> tuple[PathStep, list[str]]:
    """A stored node's items as a model is shown them, and what of them it cannot be shown, in words."""
    notes: list[str] = []
    if target.backend.speaks_responses:
        return step, notes
    given = await _resolve_kept(step.input, "input", tenant, services, notes)
    made = await _resolve_kept(step.output, "output", tenant, services, notes)
    return PathStep(step.node, given, made, step.input_ids, step.output_ids), notes


async def resolve_kept(
    items: list[Item], tenant: str, target: Target, services: Services
) -> tuple[list[Item], list[str]]:
    """Items that were accepted before as a model is shown them, and what of them it cannot be shown, in words."""
    notes: list[str] = []
    if target.backend.speaks_responses:
        return items, notes
    return await _resolve_kept(items, "input", tenant, services, notes), notes


async def _resolve_kept(
    items: list[Item], where: str, tenant: str, services: Services, notes: list[str]
) -> list[Item]:
    opened: list[Item] = []
    for item in items:
        view, note = reopen_reasoning(item, tenant, services.seal_keys)
        opened.append(view)
        if note is not None:
            notes.append(note)
    return await services.contents.resolve(opened, where=where, new=False)


def transcribe_input(items: list[Item], target: Target, window: Window) -> Segment:
    """What a round says, as the messages that continue its window; what no model was asked about yet comes first."""
    if window.unasked:
        # Their calls are among them: no earlier node made one.
        return target.backend.transcribe([*window.unasked, *items], target.profile, at_start=True)
    return target.backend.transcribe(
        items,
        target.profile,
        at_start=window.is_at_start,
        open_calls=window.open_calls,
        async_calls=window.async_calls,
    )


def _make_stored_step(step: PathStep, target: Target, window: Window, record: Record | None) -> Step:
    relays = target.backend.speaks_responses
    sent, unseen = leave_out_own(step.input) if relays else (step.input, None)
    # What waits is read once, with what it waits for.
    waits = not step.output and _may_wait(step.input, window, relays=relays)
    segment = Segment(lead="", body=b"") if waits else transcribe_input(sent, target, window)
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
    if not window.open_calls and output and all(map(is_plain, items)) and all(map(_is_answer, output)):
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
    waits = not output and _may_wait(items, window, relays=relays)
    return Step(
        node_id=node_id.partition("_")[2],
        pieces=() if waits else tuple(piece for piece in (segment.body, answer.body) if piece),
        lead="" if waits else segment.lead,
        unasked=(*window.unasked, *items) if waits else (),
        calls=tuple(calls),
        item_ids=_list_foreign_ids(node_id, (*items, *output)),
        open_calls=open_calls,
        call_types=_list_call_types(window, everything, open_calls),
        has_images=any(has_image(item) for item in items),
        remembered=list_remembered(items, replayed, node_id, speaks_responses=relays),
        waiting_approvals=_list_waiting(node_id, window, items),
        async_calls=late,
        notes=(
            # What is not transcribed yet is told of when it is.
            *(() if waits else (*segment.warnings, *answer.warnings)),
            *(*_note_unfinished(output), *unheard, *((unseen,) if unseen is not None else ())),
        ),
        prompt_tokens=prompt_tokens,
        prompt_made_with=made_with,
    )


def _may_wait(items: Sequence[Item], window: Window, *, relays: bool) -> bool:
    """Whether items without an answer, at a start, are transcribed with what follows.

    They were added to a conversation, or sent to warm up; it is as if all had come in one request.
    So nothing that is made up for a prompt (a user message where there is none) stands in the history, and texts and
    calls that belong together are together.
    """
    if not window.is_at_start or (relays and not all(map(_is_system_text, items))):
        # A server that speaks Responses is sent items as they are: only system texts make one text.
        return False
    if window.depth < FREELY_WAITING_NODES:
        return True
    waiting = [*window.unasked, *items]
    return len(waiting) <= WAITING_AT_MOST and sum(len(item.raw) for item in waiting) <= WAITING_BYTES_AT_MOST


def _is_system_text(item: Item) -> bool:
    return isinstance(item.value, Message) and item.value.role in ("system", "developer")


def is_plain(item: Item) -> bool:
    """Whether an item is a message: words alone, no call and no tools."""
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


def sign_prompt(
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
    return sign_prompt(target, instructions, record.tools, decode_settings(record.settings).tool_choice)
