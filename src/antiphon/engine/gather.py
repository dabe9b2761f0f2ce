"""From a request to a plan: the model, the window it continues, the new items, and what to ask.

It reads the store and the cache and writes neither. Invariant: when it returns, nothing about the
request itself can be refused any more; what fails later is the model server or the storage.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon.backends import Ask, Segment
from antiphon.context import Profile
from antiphon.engine.catalog import Catalog, Target
from antiphon.engine.ids import make_node_id
from antiphon.engine.refusals import has_image, refuse_images, refuse_unsupported, unsupported
from antiphon.engine.settings import Settings, StoredOutcome, encode_tools, read_settings
from antiphon.engine.windows import Step, Window, WindowCache, extend, start_window
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import (
    FunctionCall,
    Item,
    decode_stored_item,
    get_call_id,
    get_item_id,
    is_call,
    is_call_output,
)
from antiphon.protocol.requests import CreateRequest, check_not_empty
from antiphon.protocol.tools import AllowedToolsChoice, FunctionChoice, FunctionTool
from antiphon.sessions import CONTINUABLE, Node
from antiphon.sessions.pairing import check_pairing
from antiphon.store import Record, Store

#: A long path is rebuilt in portions of this many nodes, so that other clients need not wait for all of it.
NODES_AT_ONCE = 128

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_settings = msgspec.json.Decoder(Settings).decode
_decode_outcome = msgspec.json.Decoder(StoredOutcome).decode


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that a round needs to run and to be recorded."""

    request: CreateRequest
    tenant: str
    node_id: str
    target: Target
    settings: Settings
    tools: bytes | None
    window: Window
    since_deletion: int
    segment: Segment
    ask: Ask
    made_with: bytes
    #: Declared tools that this request does not let the model call.
    hidden_tools: frozenset[str] = frozenset()
    warnings: list[tuple[str, str]] = field(default_factory=list)


async def gather(
    request: CreateRequest, tenant: str, *, catalog: Catalog, store: Store, cache: WindowCache
) -> Plan:
    """Check the request against everything we know, and lay out the round."""
    refuse_unsupported(request)
    target = await catalog.find(request.model)
    since_deletion = cache.deletion_count
    window = await _find_window(request.previous_response_id, tenant, target, store, cache)
    check_not_empty(request)
    _refuse_lone_outputs(request.input)
    check_pairing(
        request.input,
        open_calls=frozenset(window.open_calls),
        is_earlier_call=window.has_call,
        is_earlier_item=window.has_item,
    )
    refuse_images(request, target.profile, in_history=window.has_images)
    segment = _transcribe_input(request.input, target, window)
    warnings = [("transcript", text) for text in dict.fromkeys((*window.notes, *segment.warnings))]
    ask = _make_ask(request, target, window, segment, warnings)
    tools = encode_tools(request)
    return Plan(
        request=request,
        tenant=tenant,
        node_id=f"resp_{make_node_id()}",
        target=target,
        settings=read_settings(request, ask.effort),
        tools=tools,
        window=window,
        since_deletion=since_deletion,
        segment=segment,
        ask=ask,
        made_with=_sign(target, request.instructions, tools, msgspec.to_builtins(request.tool_choice)),
        hidden_tools=_find_hidden(request, ask),
        warnings=warnings,
    )


async def _find_window(
    parent: str | None, tenant: str, target: Target, store: Store, cache: WindowCache
) -> Window:
    key = f"{target.backend.name}\n{target.profile.name}\n{_transcript_traits(target.profile)}"
    if parent is None:
        return start_window(key)
    window = cache.get(tenant, parent, key)
    if window is not None:
        return window
    since_deletion = cache.deletion_count
    window = await _rebuild(parent, tenant, target, start_window(key), store)
    cache.put(tenant, parent, window, since_deletion=since_deletion)
    return window


def _transcript_traits(profile: Profile) -> str:
    """What of a profile changes the bytes of a transcript."""
    tools = "native" if profile.tools == "native" else "plain"
    return f"{profile.system_messages} {profile.reasoning_field} {tools}"


async def _rebuild(parent: str, tenant: str, target: Target, window: Window, store: Store) -> Window:
    """The window of a stored path, made from its items in one query."""
    path = await store.load_path(tenant, parent)
    if path is None:
        raise make_unknown_parent(f"Previous response with id '{parent}' not found.")
    tip = path[-1]
    if tip.status not in CONTINUABLE or tip.kind != "response":
        raise make_unknown_parent(
            f"Previous response with id '{parent}' cannot be continued: its status is '{tip.status}'. "
            "Continue from an earlier response."
        )
    record = await store.load(tenant, parent)
    for position, node in enumerate(path):
        if position % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            await asyncio.sleep(0)
        window = extend(window, _make_stored_step(node, target, window, record if node is tip else None))
    return window


def _transcribe_input(items: list[Item], target: Target, window: Window) -> Segment:
    """What a round says, as the messages that continue its window."""
    return target.backend.transcribe(
        items, target.profile, at_start=window.depth == 0, open_calls=window.open_calls
    )


def _make_stored_step(node: Node, target: Target, window: Window, record: Record | None) -> Step:
    items = [decode_stored_item(raw) for raw in _decode_raws(node.input)]
    output = [decode_stored_item(raw) for raw in _decode_raws(node.output)]
    segment = _transcribe_input(items, target, window)
    outcome = _decode_outcome(record.outcome) if record is not None else None
    usage = outcome.usage if outcome is not None else None
    return make_step(
        node.id,
        target,
        window,
        segment,
        items,
        output,
        prompt_tokens=usage.input_tokens if usage is not None else None,
        made_with=_sign_stored(target, record) if record is not None else b"",
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
    replayed = [item for item in output if not _is_unfinished_call(item)]
    answer = target.backend.transcribe(replayed, target.profile, at_start=False)
    everything = [*items, *replayed]
    calls = {
        call_id: _name_call(item) for item in everything if is_call(item) and (call_id := get_call_id(item))
    }
    answered = {get_call_id(item) for item in items if is_call_output(item)}
    return Step(
        node_id=node_id.partition("_")[2],
        pieces=tuple(piece for piece in (segment.body, answer.body) if piece),
        lead=segment.lead,
        calls=tuple(calls),
        item_ids=tuple(item_id for item in items if (item_id := get_item_id(item))),
        open_calls={
            call_id: name
            for call_id, name in {**window.open_calls, **calls}.items()
            if call_id not in answered
        },
        has_images=any(has_image(item) for item in items),
        notes=(*segment.warnings, *answer.warnings, *_note_unfinished(output)),
        prompt_tokens=prompt_tokens,
        prompt_made_with=made_with,
    )


def _name_call(item: Item) -> str:
    return item.value.name if isinstance(item.value, FunctionCall) else item.type


def _note_unfinished(output: list[Item]) -> list[str]:
    return [
        f"The call {get_call_id(item)} was cut off before its arguments were whole; it is not shown to the model."
        for item in output
        if _is_unfinished_call(item)
    ]


def _is_unfinished_call(item: Item) -> bool:
    """A call that was cut off is kept and can be read, but no model is shown half a call."""
    return isinstance(item.value, FunctionCall) and item.value.status == "incomplete"


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


def _make_ask(
    request: CreateRequest,
    target: Target,
    window: Window,
    segment: Segment,
    warnings: list[tuple[str, str]],
) -> Ask:
    profile = target.profile
    lead = segment.lead if window.depth == 0 else window.lead
    system = [text for text in (target.system_prompt, request.instructions, lead) if text]
    ask = Ask(
        model=target.model,
        profile=profile,
        system="\n\n".join(system),
        transcript=[*window.pieces, segment.body] if segment.body else window.pieces,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        text_format=request.text.format if request.text.format.type != "text" else None,
        verbosity=_choose_verbosity(request, profile),
        effort=_choose_effort(request, profile, warnings),
        hints=_choose_hints(request, profile),
    )
    if "message.output_text.logprobs" in request.include or request.top_logprobs:
        ask.top_logprobs = request.top_logprobs or 0
    _choose_tools(request, profile, ask, warnings)
    return ask


def _choose_tools(
    request: CreateRequest, profile: Profile, ask: Ask, warnings: list[tuple[str, str]]
) -> None:
    """`none` hides the tools, an allowed list is a hard limit, a forced tool is named."""
    choice = request.tool_choice
    tools = [tool for tool in request.tools if isinstance(tool, FunctionTool)]
    word = choice if isinstance(choice, str) else "auto"
    if isinstance(choice, AllowedToolsChoice):
        names = {str(tool.get("name")) for tool in choice.tools}
        tools = [tool for tool in tools if tool.name in names]
        word = choice.mode
    elif isinstance(choice, FunctionChoice):
        ask.forced_tool = choice.name
        word = "required"
    if word == "none" or not tools:
        ask.tool_choice = "none"
        return
    if profile.tools == "none":
        if word == "required":
            raise RequestError(
                f"The model '{request.model}' cannot call tools, so 'tool_choice' cannot force it to.",
                param="tool_choice",
                code="unsupported_value",
            )
        names_left_out = ", ".join(tool.name for tool in tools)
        warnings.append(("tools_left_out", f"The model cannot call tools; left out: {names_left_out}."))
        ask.tool_choice = "none"
        return
    ask.tools = tools
    ask.tool_choice = "required" if word == "required" else "auto"
    ask.parallel_tool_calls = request.parallel_tool_calls
    if profile.tools == "schema" and ask.top_logprobs is not None:
        ask.top_logprobs = None
        text = (
            "The model calls tools by constrained JSON, whose log probabilities are not those of the answer."
        )
        warnings.append(("logprobs_left_out", text))


def _find_hidden(request: CreateRequest, ask: Ask) -> frozenset[str]:
    """A model may call from its history what it was not offered; the client said that it must not."""
    declared = frozenset(tool.name for tool in request.tools if isinstance(tool, FunctionTool))
    if ask.forced_tool is not None:
        return declared - {ask.forced_tool}
    return declared.difference(tool.name for tool in ask.tools)


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
    asked = request.reasoning.effort if request.reasoning is not None else None
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
    return _sign(target, instructions, record.tools, _decode_settings(record.settings).tool_choice)
