"""Probes of streams: the order of events, their numbers and ids, and whether the pieces make the whole.

Three streams are recorded in a run (a text, a tool call, an answer that is cut), and each probe asks its own
question of them.
"""

from collections.abc import Callable
from typing import Any

from antiphon.checker.answers import Refusal, read_response
from antiphon.checker.recordings import (
    Recording,
    find_call_faults,
    find_ending_faults,
    find_final_faults,
    find_id_faults,
    find_number_faults,
    find_order_faults,
    find_text_faults,
    read_type,
)
from antiphon.checker.requirements.speaking import CUT_TOKENS, LONG_TASK, TOOL, judge_cut
from antiphon.checker.subject import NoStreamError, Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, passed, undecided

_TEXT_TASK = "Write one sentence about the sea."
_CALL_TASK = "Open the vault named door with the tool."


async def probe_order(subject: Subject) -> Outcome:
    """A text and a cut answer against the lifecycle table."""
    try:
        return await _judge(subject, find_order_faults)
    except NoStreamError as reason:
        return failed(str(reason))


async def probe_numbering(subject: Subject) -> Outcome:
    """The sequence numbers of every stream."""
    return await _judge(subject, find_number_faults)


async def probe_one_terminal(subject: Subject) -> Outcome:
    """The ends of every stream."""
    return await _judge(subject, find_ending_faults)


async def probe_deltas(subject: Subject) -> Outcome:
    """Pieces against done events against finished items, of texts, reasoning and arguments."""
    return await _judge(subject, find_text_faults, needs_terminal=True)


async def probe_ids(subject: Subject) -> Outcome:
    """Ids of responses, items and calls from beginning to end."""
    return await _judge(subject, find_id_faults)


async def probe_final_response(subject: Subject) -> Outcome:
    """The terminal event's response against the items that were done."""
    return await _judge(subject, find_final_faults, needs_terminal=True)


async def probe_cut(subject: Subject) -> Outcome:
    """A long task with the smallest budget, streamed."""
    recording = await _record_cut(subject)
    if recording.terminal is None:
        return undecided("the stream has no terminal event")
    kind = read_type(recording.terminal)
    answer = read_response(recording.response)
    if answer is None or isinstance(answer, Refusal):
        return undecided(f"the stream ended in {kind} without an answer")
    outcome = judge_cut(answer)
    return Outcome(outcome.verdict, f"{kind}; {outcome.explanation}", outcome.evidence)


async def probe_tool_call(subject: Subject) -> Outcome:
    """The events of a forced call."""
    recording = await _record_call(subject)
    if recording.terminal is None:
        return undecided("the stream has no terminal event")
    faults = find_call_faults(recording)
    if faults is None:
        return undecided("the model did not call the tool, although tool_choice forced it")
    if faults:
        return failed("; ".join(faults))
    return passed("added with empty arguments, then deltas, arguments done, item done")


async def probe_errors(subject: Subject) -> Outcome:
    """Two streaming requests that cannot be carried out: an unknown parent, an unknown model."""
    bad: dict[str, dict[str, Any]] = {
        "an unknown previous_response_id": {"previous_response_id": subject.make_id("resp")},
        "an unknown model": {"model": subject.make_word()},
    }
    told = []
    for what, fields in bad.items():
        base = {"model": subject.model, "input": [user("Say hello.")]}
        answer = await subject.record_refusal(**{**base, **fields})
        if isinstance(answer, Refusal):
            told.append(f"{what}: HTTP {answer.status}")
            continue
        if not answer.events:
            return failed(f"{what}: status 200 and a stream without events")
        kind = read_type(answer.terminal or {})
        has_error = any(read_type(event) == "error" for event in answer.events)
        if kind in ("response.completed", "response.incomplete") and not has_error:
            continue
        faults = find_ending_faults(answer)
        if not faults and kind != "response.failed":
            faults = [f"an error event is followed by {kind}"]
        if faults:
            return failed(f"{what}: {'; '.join(faults)}")
        told.append(f"{what}: one response.failed")
    if not told:
        return undecided("no streaming request was refused, so no error could be seen")
    return passed("; ".join(told))


async def _judge(
    subject: Subject, find: Callable[[Recording], list[str]], *, needs_terminal: bool = False
) -> Outcome:
    """The faults of the text's stream, and of the others where they can be had."""
    recordings = {"a text": await _record_text(subject)}
    others = {"a cut answer": _record_cut, "a tool call": _record_call}
    # The sequence of a call is a question of its own.
    if find is find_order_faults:
        others.pop("a tool call")
    for what, record in others.items():
        try:
            recordings[what] = await record(subject)
        except UndecidedError:
            continue
    judged = {
        what: recording
        for what, recording in recordings.items()
        if recording.terminal is not None or not needs_terminal
    }
    if not judged:
        return undecided("no stream had a terminal event")
    for what, recording in judged.items():
        if not recording.events:
            return failed(f"the stream of {what} holds no event")
        faults = find(recording)
        if faults:
            return failed(f"in the stream of {what}: {'; '.join(faults)}", events=len(recording.events))
    counted = ", ".join(f"{what} ({len(recording.events)} events)" for what, recording in judged.items())
    return passed(f"right in the stream of {counted}")


async def _record_text(subject: Subject) -> Recording:
    return await subject.record("text", [user(_TEXT_TASK)])


async def _record_cut(subject: Subject) -> Recording:
    if "max_output_tokens" in subject.left_out:
        raise UndecidedError("the server refuses max_output_tokens, so no answer can be cut")
    recording = await subject.record("cut", [user(LONG_TASK)], max_output_tokens=CUT_TOKENS)
    if "max_output_tokens" in subject.left_out:
        raise UndecidedError("the server refuses max_output_tokens, so no answer can be cut")
    return recording


async def _record_call(subject: Subject) -> Recording:
    """A forced call; where the server does not know the tool's name as a choice, any call."""
    choice: dict[str, Any] = {"type": "function", "name": TOOL["name"]}
    items, tools = [user(_CALL_TASK)], [TOOL]
    try:
        recording = await subject.record("named call", items, tools=tools, tool_choice=choice)
    except NoStreamError:
        raise
    except UndecidedError:
        recording = None
    if recording is not None and find_call_faults(recording) is not None:
        return recording
    return await subject.record("required call", items, tools=tools, tool_choice="required")
