"""Probes of work in the background: queued, polled, cancelled, and streamed again without a gap.

Invariant: a server that does not work in the background, and says so by the field's name, is not guilty.
"""

from typing import Any

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.recordings import (
    Recording,
    find_ending_faults,
    find_number_faults,
    find_order_faults,
    read_type,
)
from antiphon.checker.requirements.conversing import SLOWER, make_job, wait_for_end
from antiphon.checker.requirements.judging import expect_refusal, is_named, read_list
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING, LONG_TASK
from antiphon.checker.subject import Fetched, Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, passed, unasked, undecided

_API = "OpenAI guide, Background mode"
_RUNNING = ("queued", "in_progress")
#: Events that are read before a stream is left.
HEAD_EVENTS = 4


async def start(subject: Subject, task: str, **fields: Any) -> dict[str, Any]:
    """A response in the background; raises `UndecidedError` where there is no such thing."""
    body = make_job(subject, task, **fields)
    fetched = await subject.fetch("POST", "/responses", body)
    _check_served(fetched)
    return fetched.object


def _check_served(fetched: Fetched) -> None:
    refusal = fetched.refusal
    if refusal is None:
        return
    named = refusal.is_clients_fault and is_named(refusal, "background")
    needs = "a server that works in the background" if named else None
    raise UndecidedError(f"a background response is refused ({refusal})", needs)


async def probe_queued(subject: Subject) -> Outcome:
    """The first answer is there at once, without output; polling brings it to its end."""
    first = await start(subject, GREETING)
    status = first.get("status")
    if status not in _RUNNING:
        return failed(f"a background response is answered with status {status!r}, not queued or in_progress")
    if first.get("output") != [] or first.get("usage") is not None or first.get("background") is not True:
        return failed("the first answer has an output or a usage already, or does not say background true")
    last = await wait_for_end(subject, first.get("id"))
    items = read_list(last.get("output"))
    # A small model may write until its window is full.
    if last.get("status") not in ("completed", "incomplete") or not items:
        told = f"a background response ended as {last.get('status')!r} with {len(items)} items"
        return failed(f"{told} (error: {last.get('error')})")
    return passed(f"{status} at once, {last.get('status')} later", output_items=len(items))


async def probe_not_stored(subject: Subject) -> Outcome:
    """Background work with store:false has nowhere to stand."""
    body = {"model": subject.model, "input": GREETING, "background": True, "store": False}
    fetched = await subject.fetch("POST", "/responses", body)
    return expect_refusal(fetched, "background with store:false", names=("background", "store"))


async def probe_cancel(subject: Subject) -> Outcome:
    """A long task is cancelled, twice; it stays cancelled and shows no answer."""
    first = await start(subject, LONG_TASK)
    path = f"/responses/{first.get('id')}"
    for turn in ("", " a second time"):
        answer = await subject.fetch("POST", f"{path}/cancel")
        if answer.refusal is not None:
            return _judge_missed(answer.refusal, turn)
        if answer.object.get("status") != "cancelled":
            return failed(f"cancelled{turn}, the response says {answer.object.get('status')!r}")
    found = (await subject.fetch("GET", path)).object
    if found.get("status") != "cancelled" or found.get("output") or found.get("completed_at") is not None:
        return failed(f"after cancelling GET shows status {found.get('status')!r} or an answer")
    return passed("cancelled, twice, and it stays so")


def _judge_missed(refusal: Refusal, turn: str) -> Outcome:
    if not turn and "completed" in refusal.message:
        return unasked(SLOWER, f"the response had ended before it could be cancelled ({refusal})")
    return failed(f"a background response cannot be cancelled{turn} ({refusal})")


async def probe_cancel_ended(subject: Subject) -> Outcome:
    """A response that is completed cannot be cancelled any more."""
    first = await start(subject, GREETING)
    await wait_for_end(subject, first.get("id"))
    fetched = await subject.fetch("POST", f"/responses/{first.get('id')}/cancel")
    return expect_refusal(fetched, "cancelling a completed response")


async def probe_cancel_synchronous(subject: Subject) -> Outcome:
    """A response that never was in the background."""
    first = await subject.ask([user(GREETING)])
    fetched = await subject.fetch("POST", f"/responses/{first.id}/cancel")
    return expect_refusal(fetched, "cancelling a response that did not run in the background")


async def probe_not_resumable(subject: Subject) -> Outcome:
    """A stored response that was made without a stream cannot be streamed."""
    first = await subject.ask([user(GREETING)])
    fetched = await subject.fetch("GET", f"/responses/{first.id}?stream=true")
    return expect_refusal(fetched, "streaming a response that did not run in the background")


async def record_background(subject: Subject) -> Recording:
    """The stream of a background response."""
    body = make_job(subject, GREETING, stream=True)
    fetched = await subject.fetch("POST", "/responses", body)
    _check_served(fetched)
    if not fetched.is_stream:
        raise UndecidedError("background with stream:true is answered without a stream")
    return fetched.recording


async def probe_stream(subject: Subject) -> Outcome:
    """A background stream keeps the protocol's order, from created to its one end."""
    recording = await record_background(subject)
    faults = [
        *find_order_faults(recording),
        *find_number_faults(recording),
        *find_ending_faults(recording),
    ]
    if faults:
        return failed(f"in the background's stream: {'; '.join(faults[:5])}", events=len(recording.events))
    if read_type(recording.events[0]) != "response.created":
        return failed(f"a background stream begins with {read_type(recording.events[0])}")
    return passed("right from created to its end", events=len(recording.events))


async def probe_replay(subject: Subject) -> Outcome:
    """The whole stream again, then what comes after each place of it: the same events."""
    recording = await record_background(subject)
    response_id = recording.response.get("id")
    last = len(recording.events) - 1
    for after in (None, 0, last // 2, last):
        query = "" if after is None else f"&starting_after={after}"
        again = await subject.fetch("GET", f"/responses/{response_id}?stream=true{query}")
        if again.refusal is not None or not again.is_stream:
            return failed(f"a background response cannot be streamed again ({again.refusal or 'no stream'})")
        wanted = recording.events[0 if after is None else after + 1 :]
        if _number(again.recording) != _number(Recording(wanted)):
            return failed(
                f"streamed again after {after} it has the events {_number(again.recording)[:5]}...,"
                f" not {_number(Recording(wanted))[:5]}..."
            )
    return passed("streamed again whole and from each place, the same events", events=len(recording.events))


def _number(recording: Recording) -> list[tuple[Any, str]]:
    return [(event.get("sequence_number"), read_type(event)) for event in recording.events]


async def probe_resume(subject: Subject) -> Outcome:
    """A stream is left in the middle, and taken up where it was left: every number once, up to the end."""
    body = make_job(subject, LONG_TASK, stream=True)
    head = await subject.fetch_head("/responses", body, HEAD_EVENTS)
    events = head.events[:HEAD_EVENTS]
    response: Any = events[0].get("response") if events else None
    if not isinstance(response, dict) or not isinstance(response.get("id"), str):
        # Why there is none, the whole request tells.
        await start(subject, GREETING)
        return undecided("the stream of a background response could not be begun")
    after = events[-1].get("sequence_number")
    tail = await subject.fetch("GET", f"/responses/{response['id']}?stream=true&starting_after={after}")
    if tail.refusal is not None or not tail.is_stream:
        return failed(f"a stream that was left cannot be taken up ({tail.refusal or 'no stream'})")
    whole = Recording([*events, *tail.recording.events])
    faults = [*find_number_faults(whole), *find_ending_faults(whole)]
    if faults:
        return failed(f"left after {after} and taken up: {'; '.join(faults[:3])}", events=len(whole.events))
    return passed(f"left after {after} and taken up without gap or double", events=len(whole.events))


async def probe_continues(subject: Subject) -> Outcome:
    """A response that ended in the background is a parent like any other."""
    first = await start(subject, GREETING)
    ended = await wait_for_end(subject, first.get("id"))
    if ended.get("status") not in ("completed", "incomplete"):
        return undecided(f"the background response ended as {ended.get('status')!r}")
    answer = await subject.create([user(GREETING)], previous=str(first.get("id")))
    if not isinstance(answer, Answer):
        return failed(f"a response from the background cannot be continued ({answer})")
    alone = await subject.ask([user(GREETING)])
    if answer.tokens is not None and alone.tokens is not None and answer.tokens <= alone.tokens:
        return failed("a continuation of a background response counts no history")
    return passed("continued like any other response")


_ROWS: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
    (
        "queued",
        "A background response is answered at once, and polling brings it to its end.",
        probe_queued,
        ("field:background", "endpoint:GET /responses/{id}"),
    ),
    (
        "store-false",
        "Background work that is not stored is refused by name.",
        probe_not_stored,
        ("field:background",),
    ),
    (
        "cancel",
        "A background response can be cancelled, more than once.",
        probe_cancel,
        ("endpoint:POST /responses/{id}/cancel",),
    ),
    (
        "cancel-ended",
        "A completed response cannot be cancelled.",
        probe_cancel_ended,
        ("endpoint:POST /responses/{id}/cancel",),
    ),
    (
        "cancel-synchronous",
        "A response that did not run in the background cannot be cancelled.",
        probe_cancel_synchronous,
        ("error:cancel_synchronous",),
    ),
    (
        "not-resumable",
        "A response that did not run in the background cannot be streamed again.",
        probe_not_resumable,
        ("error:stream_not_resumable",),
    ),
    (
        "stream",
        "The stream of a background response keeps the protocol's order.",
        probe_stream,
        ("field:background",),
    ),
    (
        "replay",
        "A background stream can be had again, whole or after any event.",
        probe_replay,
        ("endpoint:GET /responses/{id}?stream=true",),
    ),
    (
        "resume",
        "A background stream that was left is taken up without gap or double.",
        probe_resume,
        ("endpoint:GET /responses/{id}?stream=true",),
    ),
    ("continues", "A response from the background can be continued.", probe_continues, ("field:background",)),
)
REQUIREMENTS: tuple[Requirement, ...] = tuple(
    Requirement(f"background.{name}", "background", _API, told, probe, covers)
    for name, told, probe, covers in _ROWS
)
