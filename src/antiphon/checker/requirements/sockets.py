"""Probes of WebSocket mode: requests, errors, lanes, warm-ups, and what one connection can continue.

A server need not have this mode: then each of these is undecided, and says that it is not offered. The tests of the
Open Responses suite stand here with its requests and assertions; `compacting` has the one that begins with a
compaction.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.recordings import (
    Event,
    find_ending_faults,
    find_number_faults,
    find_order_faults,
    read_type,
)
from antiphon.checker.requirements.continuing import try_words
from antiphon.checker.requirements.judging import is_named
from antiphon.checker.requirements.open_responses import (
    assert_completed,
    assert_output,
    find_event_faults,
    find_response_faults,
)
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import (
    GREETING,
    QUESTION,
    make_output,
    make_reading,
    make_steer,
    plant,
)
from antiphon.checker.socket_line import LineClosedError, SocketLine, Turn, read_error_frame
from antiphon.checker.subject import OUTPUT_TOKENS, Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, judge_memory, passed, unasked, undecided

_GUIDE = "OpenAI guide, WebSocket mode"
_SUITE = "Open Responses compliance suite: {}"
#: Named lanes that a connection may have.
LANES = 32
#: RFC 6455, 7.4.1: a message that the other side cannot take.
_UNREADABLE_CODES = (1002, 1003, 1007, 1008)
_NOT_FOUND = "previous_response_not_found"

LineProbe = Callable[[Subject, SocketLine], Awaitable[Outcome]]


async def probe_on_line(probe: LineProbe, subject: Subject) -> Outcome:
    """A probe on a connection of its own; that the server closes it is a fault."""
    async with subject.open_socket() as line:
        try:
            return await probe(subject, line)
        except LineClosedError as closed:
            return failed(str(closed), close_code=closed.close_code)


def judge_turn(turn: Turn) -> Outcome:
    """The suite's assertions on one answer."""
    if turn.error is not None:
        return failed(f"the request is refused ({read_error_frame(turn.error)})")
    faults = [fault for event in turn.events for fault in find_event_faults(event)]
    faults += find_response_faults(turn.recording.response)
    faults += [
        told for check in (assert_completed, assert_output) if (told := check(turn.recording.response))
    ]
    if faults:
        return failed("; ".join(dict.fromkeys(faults))[:500])
    return passed(f"{len(turn.events)} events, each of the contract; completed", events=len(turn.events))


def judge_code(turn: Turn, what: str, code: str, *names: str) -> Outcome:
    """Refused by an error frame with this code, or by one that names what it is about where names are given."""
    if turn.error is None:
        return failed(f"{what} is answered")
    refusal = read_error_frame(turn.error)
    if refusal.code == code or (names and is_named(refusal, *names)):
        return passed(f"{what} is refused ({refusal})", code=refusal.code)
    return failed(f"{what} is refused, but not by {code} ({refusal})", code=refusal.code)


# The suite's tests.


async def probe_response(subject: Subject, line: SocketLine) -> Outcome:
    """One request."""
    return judge_turn(await line.create([user("Say hello in exactly 3 words.")]))


async def probe_sequential(subject: Subject, line: SocketLine) -> Outcome:
    """Two, one after the other, not stored."""
    first = judge_turn(await line.create([user("Say one.")], store=False))
    second = judge_turn(await line.create([user("Say two.")], store=False))
    return second if first.verdict == "pass" else first


async def probe_continuation(subject: Subject, line: SocketLine) -> Outcome:
    """What is not stored is continued on its connection by a text."""
    first = await line.ask([user("Remember the code word: mango.")], store=False)
    return judge_turn(await line.create("What was the code word?", previous=first.id, store=False))


async def probe_reconnect(subject: Subject) -> Outcome:
    """Another connection knows nothing of it, and goes on."""
    async with subject.open_socket() as line:
        first = await line.ask([user("Remember the code word: mango.")], store=False)
    async with subject.open_socket() as line:
        lost = await line.create([user("What was the code word?")], previous=first.id, store=False)
        outcome = judge_code(lost, "a response of another connection that is not stored", _NOT_FOUND)
        if outcome.verdict != "pass":
            return outcome
        after = judge_turn(await line.create([user(GREETING)], store=False))
        return outcome if after.verdict == "pass" else after


async def probe_unknown_parent(subject: Subject, line: SocketLine) -> Outcome:
    """An id that nobody gave out."""
    turn = await line.create([user(GREETING)], previous=subject.make_id("resp"), store=False)
    return judge_code(turn, "an unknown previous_response_id", _NOT_FOUND)


async def probe_evicts(subject: Subject, line: SocketLine) -> Outcome:
    """A continuation that fails takes its parent with it."""
    first = await line.ask([user(GREETING)], store=False)
    failing = await line.create([make_output("call_nobody", "1")], previous=first.id, store=False)
    if isinstance(failing.outcome, Answer):
        return failed("the output of a call that nobody made is answered")
    again = await line.create([user(GREETING)], previous=first.id, store=False)
    return judge_code(again, "a parent whose continuation failed", _NOT_FOUND)


# Errors.


async def probe_error_shape(subject: Subject, line: SocketLine) -> Outcome:
    """The members of an error frame and their types."""
    frame = (await line.create([user(GREETING)], previous=subject.make_id("resp"))).error
    if frame is None:
        return undecided("an unknown previous_response_id is answered, so that there is no error to look at")
    error = frame.get("error")
    if not isinstance(error, dict):
        return failed("the error is no object", frame=str(frame)[:200])
    faults = [name for name in ("type", "code", "message") if not isinstance(error.get(name), str)]
    if "param" not in error or not isinstance(error["param"], str | None):
        faults.append("param")
    if type(frame.get("status")) is not int:
        faults.append("status")
    if faults:
        return failed(f"missing, or of a wrong type: {', '.join(faults)}", frame=str(frame)[:200])
    return passed(f"status {frame['status']}, type, code, message and param", code=error["code"])


async def probe_open_after_error(subject: Subject, line: SocketLine) -> Outcome:
    """A refused request, then one that is not."""
    refused = await line.create([user(GREETING)], model=None)
    if refused.error is None:
        return undecided("a request without a model is answered, so that there is no error to go on after")
    outcome = judge_turn(await line.create([user(GREETING)]))
    if outcome.verdict != "pass":
        return failed(f"after an error: {outcome.explanation}")
    return passed("a request after an error is answered on the same connection")


async def probe_unknown_frame(subject: Subject, line: SocketLine) -> Outcome:
    """A type that there is not."""
    before, _ = await line.probe_frame({"type": "response.destroy"})
    return _judge_frame_error(before, "a frame of an unknown type", "type", "response.destroy")


async def probe_unreadable(subject: Subject) -> Outcome:
    """Frames that are no JSON object, each on a connection of its own."""
    told: list[str] = []
    for what, frame in (("no JSON", "{nonsense"), ("no object", "[]"), ("binary", b'{"type":"x"}')):
        async with subject.open_socket() as line:
            try:
                before, _ = await line.probe_frame(frame)
            except LineClosedError as closed:
                if closed.close_code not in _UNREADABLE_CODES:
                    return failed(f"{what}: {closed}", close_code=closed.close_code)
                told.append(f"{what}: closed with {closed.close_code}")
                continue
        outcome = _judge_frame_error(before, f"a frame that is {what}")
        if outcome.verdict != "pass":
            return outcome
        told.append(f"{what}: an error frame")
    return passed("; ".join(told))


def _judge_frame_error(before: list[Event], what: str, *names: str) -> Outcome:
    error = next((event for event in before if read_type(event) == "error"), None)
    if error is None:
        return failed(f"{what} is passed over in silence")
    refusal = read_error_frame(error)
    if names and not is_named(refusal, *names):
        return failed(f"{what} is refused without being named ({refusal})")
    return passed(f"{what} is refused ({refusal}), and the connection goes on", code=refusal.code)


async def probe_background(subject: Subject, line: SocketLine) -> Outcome:
    """Background work has no place on a connection."""
    turn = await line.create([user(GREETING)], background=True)
    return judge_code(turn, "background:true", "unsupported_parameter", "background")


async def probe_stream_tolerated(subject: Subject, line: SocketLine) -> Outcome:
    """Clients send these all the same."""
    for fields in ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"stream": False}):
        outcome = judge_turn(await line.create([user(GREETING)], **fields))
        if outcome.verdict != "pass":
            return failed(f"{fields}: {outcome.explanation}")
    return passed("stream and stream_options change nothing")


async def probe_steer(subject: Subject, line: SocketLine) -> Outcome:
    """Steering is answered by one of its own events, or by an error frame."""
    before, _ = await line.probe_frame(make_steer(subject))
    for event in before:
        if read_type(event).startswith("response.steer."):
            error = event.get("error")
            told = f" ({error.get('code')})" if isinstance(error, dict) else ""
            return passed(f"answered by {read_type(event)}{told}")
    return _judge_frame_error(before, "response.steer", "steer")


# Lanes.


async def probe_lanes_marked(subject: Subject, line: SocketLine) -> Outcome:
    """Each frame of a named lane names it, an error as well; those of the default one name none."""
    good = await line.create([user(GREETING)], lane="lane-1")
    bad = await line.create([user(GREETING)], lane="lane-1", previous=subject.make_id("resp"))
    plain = await line.create([user(GREETING)])
    frames = [*good.events, *bad.events, *([bad.error] if bad.error else [])]
    unmarked = [read_type(frame) for frame in frames if frame.get("stream_id") != "lane-1"]
    if unmarked:
        return failed(f"{len(unmarked)} frames of a lane do not name it, the first is {unmarked[0]}")
    if any(frame.get("stream_id") is not None for frame in plain.events):
        return failed("frames of the default lane name one")
    return passed(f"{len(frames)} frames name their lane", frames=len(frames))


async def probe_lanes_together(subject: Subject, line: SocketLine) -> Outcome:
    """Two requests before anything is read: each lane has its own whole stream."""
    words = {lane: subject.make_word() for lane in ("left", "right")}
    for lane, word in words.items():
        await line.begin([user(f"The secret word is {word}. {QUESTION}")], lane=lane)
    turns = await _read_lanes(line, dict.fromkeys(words, 1))
    for lane, (turn,) in turns.items():
        if turn.error is not None:
            return failed(f"the lane {lane} is refused ({read_error_frame(turn.error)})")
        faults = [*find_order_faults(turn.recording), *find_number_faults(turn.recording)]
        if faults:
            return failed(f"in the lane {lane}: {faults[0]}")
        foreign = next(word for other, word in words.items() if other != lane)
        if isinstance(turn.outcome, Answer) and foreign.lower() in turn.outcome.text.lower():
            return failed(f"the lane {lane} knows the word of the other one")
    return passed("two lanes, each with its own whole stream")


async def probe_lane_order(subject: Subject, line: SocketLine) -> Outcome:
    """Three requests of one lane at once: one after the other, in their order."""
    for number in range(3):
        await line.begin(
            [user(GREETING)], lane="queue", metadata={"place": str(number)}, max_output_tokens=16
        )
    turns = [await line.finish("queue") for _ in range(3)]
    for turn in turns:
        if turn.error is not None:
            return failed(f"a request that waits in a lane is refused ({read_error_frame(turn.error)})")
        if find_order_faults(turn.recording):
            return failed(f"two responses of one lane run at once ({find_order_faults(turn.recording)[0]})")
    places = [(turn.recording.response.get("metadata") or {}).get("place") for turn in turns]
    if places == ["0", "1", "2"]:
        return passed("answered one after the other, in their order")
    if None in places:
        return undecided("the responses do not repeat their metadata, so nothing tells them apart")
    return failed(f"the requests 0, 1, 2 of a lane were answered in the order {', '.join(map(str, places))}")


async def _read_lanes(line: SocketLine, wanted: dict[str, int]) -> dict[str, list[Turn]]:
    """The frames of several lanes, sorted, until each has so many ends."""
    found: dict[str, list[Turn]] = {lane: [] for lane in wanted}
    running = {lane: Turn() for lane in wanted}
    while any(len(found[lane]) < count for lane, count in wanted.items()):
        event = await line.read()
        lane = event.get("stream_id")
        if not isinstance(lane, str) or lane not in running:
            raise UndecidedError(
                f"a frame ({read_type(event)}) names no lane, so that they cannot be told apart"
            )
        turn = running[lane]
        if read_type(event) == "error" and not turn.events:
            turn.error = event
        else:
            turn.events.append(event)
        if turn.error is not None or turn.recording.terminal is not None:
            found[lane].append(turn)
            running[lane] = Turn()
    return found


async def probe_bad_lane(subject: Subject, line: SocketLine) -> Outcome:
    """Names that are none."""
    for name in ("", "two words", "x" * 65):
        await line.begin([user(GREETING)], stream_id=name)
        outcome = judge_code(await line.finish(), f"the stream_id {name[:20]!r}", "invalid_stream_id")
        if outcome.verdict != "pass":
            return outcome
    return outcome


async def probe_lane_limit(subject: Subject, line: SocketLine) -> Outcome:
    """One lane more than there may be; warm-ups cost no answer."""
    for number in range(LANES):
        turn = await line.create([user(GREETING)], lane=f"lane-{number}", generate=False)
        if turn.error is not None:
            return undecided(f"lane {number + 1} is refused already ({read_error_frame(turn.error)})")
    turn = await line.create([user(GREETING)], lane="one-too-many", generate=False)
    return judge_code(turn, f"lane {LANES + 1}", "websocket_stream_limit_reached")


# What one connection continues.


async def probe_warm_up(subject: Subject, line: SocketLine) -> Outcome:
    """A warm-up is a response without output, and its context counts for what continues it."""
    return await try_words(lambda: _warm_up(subject, line))


async def _warm_up(subject: Subject, line: SocketLine) -> Outcome:
    word = subject.make_word()
    told, question = plant(word), user(QUESTION)
    turn = await line.create([told], generate=False, store=False)
    warm = turn.outcome
    if isinstance(warm, Refusal):
        return failed(f"generate:false is refused ({warm})")
    if warm.output or warm.status != "completed":
        return failed(f"a warm-up is {warm.status} with {len(warm.output)} output items", status=warm.status)
    by_id = (await line.create([question], previous=warm.id, store=False)).outcome
    if isinstance(by_id, Refusal):
        return failed(f"a warm-up cannot be continued ({by_id})")
    full = await line.ask([told, question], store=False)
    none = await line.ask([question], store=False)
    return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))


async def probe_warm_up_empty(subject: Subject, line: SocketLine) -> Outcome:
    """There need be nothing to answer."""
    warm = (await line.create([], generate=False, store=False, instructions="Be brief.")).outcome
    if isinstance(warm, Refusal):
        return failed(f"a warm-up without input is refused ({warm})")
    if warm.output:
        return failed(f"a warm-up has {len(warm.output)} output items")
    after = (await line.create([user(GREETING)], previous=warm.id, store=False)).outcome
    if isinstance(after, Refusal):
        return failed(f"a warm-up without input cannot be continued ({after})")
    return passed("a warm-up without input is completed, and continued")


async def probe_continues_unstored(subject: Subject, line: SocketLine) -> Outcome:
    """By id on the connection, with the full history, with none: nothing of it stored."""
    return await try_words(lambda: _recall_unstored(subject, line))


async def _recall_unstored(subject: Subject, line: SocketLine) -> Outcome:
    word = subject.make_word()
    told, question = plant(word), user(QUESTION)
    first = await line.ask([told], store=False)
    by_id = (await line.create([question], previous=first.id, store=False)).outcome
    if isinstance(by_id, Refusal):
        return failed(f"what is not stored cannot be continued on its own connection ({by_id})")
    full = await line.ask([told, *first.output, question], store=False)
    none = await line.ask([question], store=False)
    return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))


async def probe_continues_http(subject: Subject, line: SocketLine) -> Outcome:
    """A response that was stored over HTTP is a parent on a connection."""

    async def recall() -> Outcome:
        word = subject.make_word()
        told, question = plant(word), user(QUESTION)
        first = await subject.ask([told])
        by_id = (await line.create([question], previous=first.id)).outcome
        if isinstance(by_id, Refusal):
            return failed(f"a stored response cannot be continued over WebSocket ({by_id})")
        full = await line.ask([told, *first.output, question])
        none = await line.ask([question])
        return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))

    return await try_words(recall)


async def probe_continued_over_http(subject: Subject, line: SocketLine) -> Outcome:
    """A response that was stored over a connection is a parent over HTTP."""

    async def recall() -> Outcome:
        word = subject.make_word()
        told, question = plant(word), user(QUESTION)
        first = await line.ask([told], store=True)
        by_id = await subject.create([question], previous=first.id)
        if isinstance(by_id, Refusal):
            return failed(
                f"a response that was stored over WebSocket cannot be continued over HTTP ({by_id})"
            )
        full = await subject.ask([told, *first.output, question])
        none = await subject.ask([question])
        return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))

    return await try_words(recall)


async def probe_fork_keeps(subject: Subject, line: SocketLine) -> Outcome:
    """A failing fork from another lane leaves the parent where it stands."""
    first = await line.ask([user(GREETING)], lane="main", store=False)
    fork = await line.create([make_output("call_nobody", "1")], previous=first.id, lane="fork", store=False)
    if isinstance(fork.outcome, Answer):
        return failed("the output of a call that nobody made is answered")
    if fork.outcome.code == _NOT_FOUND:
        return failed(f"the response of another lane cannot be continued ({fork.outcome})")
    after = (await line.create([user(GREETING)], previous=first.id, lane="main", store=False)).outcome
    if isinstance(after, Refusal):
        return failed(f"after a failing fork from another lane the parent cannot be continued ({after})")
    return passed("a failing fork from another lane took nothing away")


async def probe_other_key(subject: Subject) -> Outcome:
    """A connection with another key continues neither what is stored nor what is not."""
    other = subject.other
    if other is None:
        return unasked("--second-key-env", "needs a key of another tenant")
    async with subject.open_socket() as line, other.open_socket() as foreign:
        stored = await line.ask([user(GREETING)], store=True)
        held = await line.ask([user(GREETING)], store=False)
        for what, one in (("a stored response", stored), ("a response that is not stored", held)):
            turn = await foreign.create([user(QUESTION)], previous=one.id, store=False)
            outcome = judge_code(turn, f"{what} of another key", _NOT_FOUND)
            if outcome.verdict != "pass":
                return outcome
    return outcome


# The same events as over HTTP.


async def probe_lifecycle(subject: Subject, line: SocketLine) -> Outcome:
    """Order, numbers and one end, as in a stream."""
    turn = await line.create([user("Write one sentence about the sea.")])
    if turn.error is not None:
        return failed(f"the request is refused ({read_error_frame(turn.error)})")
    recording = turn.recording
    faults = [*find_order_faults(recording), *find_number_faults(recording), *find_ending_faults(recording)]
    if faults:
        return failed("; ".join(faults)[:500])
    return passed(f"{len(turn.events)} events in their order, numbered from 0", events=len(turn.events))


async def probe_same_events(subject: Subject, line: SocketLine) -> Outcome:
    """The same request over HTTP: the same kinds of events with the same members, deltas as one."""
    items = [user("Say hello in exactly 3 words.")]
    over_http = await subject.try_record(
        "as over WebSocket", input=items, temperature=0, max_output_tokens=OUTPUT_TOKENS
    )
    if isinstance(over_http, Refusal):
        return undecided(f"the request is refused over HTTP ({over_http})")
    turn = await line.create(items)
    if turn.error is not None:
        return failed(f"the request is refused ({read_error_frame(turn.error)})")
    here, there = _sum_up(turn.events), _sum_up(over_http.events)
    if here == there:
        return passed(f"{len(here)} kinds of events in the same order, with the same members")
    if [kind for kind, _ in here] != [kind for kind, _ in there]:
        texts = [one.get("output") for one in (turn.recording.response, over_http.response)]
        if _read_kinds(texts[0]) != _read_kinds(texts[1]):
            return undecided("the model answered otherwise")
    lost = next(
        (kind for one, (kind, members) in zip(there, here, strict=False) if one != (kind, members)), ""
    )
    return failed(f"the events differ from those over HTTP, from {lost or 'the end'} on"[:300])


def _sum_up(events: list[Event]) -> list[tuple[str, frozenset[str]]]:
    """Types with their members; a run of deltas is one. What only hides lengths, or names a lane, is left out."""
    found: list[tuple[str, frozenset[str]]] = []
    for event in events:
        one = (read_type(event), frozenset(event) - {"obfuscation", "stream_id"})
        # A keep-alive may come or not.
        if found and one == found[-1] and one[0].endswith((".delta", ".in_progress")):
            continue
        found.append(one)
    return found


def _read_kinds(output: Any) -> list[Any]:
    return [item.get("type") for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def _make(name: str, source: str, told: str, probe: LineProbe, *covers: str) -> Requirement:
    return Requirement(f"websocket.{name}", "websocket", source, told, partial(probe_on_line, probe), covers)


def _make_free(
    name: str, source: str, told: str, probe: Callable[[Subject], Awaitable[Outcome]], *covers: str
) -> Requirement:
    return Requirement(f"websocket.{name}", "websocket", source, told, probe, covers)


REQUIREMENTS: tuple[Requirement, ...] = (
    _make(
        "response",
        _SUITE.format("websocket-response"),
        "A response.create is answered by whole events that fit the contract's schema.",
        probe_response,
        "frame:response.create",
        "endpoint:WebSocket /responses",
    ),
    _make(
        "sequential-responses",
        _SUITE.format("websocket-sequential-responses"),
        "One connection answers one request after the other.",
        probe_sequential,
        "frame:response.create",
    ),
    _make(
        "continuation",
        _SUITE.format("websocket-continuation"),
        "A response with store:false is continued on its own connection.",
        probe_continuation,
        "field:previous_response_id",
    ),
    _make_free(
        "reconnect-store-false-recovery",
        _SUITE.format("websocket-reconnect-store-false-recovery"),
        "Another connection does not find a response with store:false, says so, and goes on.",
        probe_reconnect,
        "error:previous_response_not_found",
    ),
    _make(
        "previous-response-not-found",
        _SUITE.format("websocket-previous-response-not-found"),
        "An unknown previous_response_id is refused by an error frame with previous_response_not_found.",
        probe_unknown_parent,
        "error:previous_response_not_found",
    ),
    _make(
        "failed-continuation-evicts-cache",
        _SUITE.format("websocket-failed-continuation-evicts-cache"),
        "A continuation that fails takes the parent that is not stored away from its lane.",
        probe_evicts,
        "field:previous_response_id",
    ),
    _make(
        "error-shape",
        f"{_GUIDE}; Open Responses",
        "An error frame has an integer status and an error with type, code, message and param.",
        probe_error_shape,
        "frame:error",
    ),
    _make(
        "open-after-error",
        _GUIDE,
        "The connection stays open after an error.",
        probe_open_after_error,
        "frame:error",
    ),
    _make(
        "unknown-frame",
        _GUIDE,
        "A frame of an unknown type is refused by its name, and the connection goes on.",
        probe_unknown_frame,
        "frame:error",
    ),
    _make_free(
        "unreadable-frames",
        f"{_GUIDE}; RFC 6455, 7.4.1",
        "A frame that is binary, no JSON or no object gets an error frame, or the connection is closed for it.",
        probe_unreadable,
        "frame:error",
    ),
    _make(
        "background",
        _GUIDE,
        "background:true is refused by its name.",
        probe_background,
        "field:background",
    ),
    _make(
        "stream-tolerated",
        f"{_GUIDE}; openai-agents sends stream:true",
        "stream and stream_options change nothing.",
        probe_stream_tolerated,
        "field:stream",
        "field:stream_options",
    ),
    _make(
        "steer",
        f"{_GUIDE}: steering",
        "response.steer is accepted, pending or failed by an event of its own, or refused by an error frame.",
        probe_steer,
        "frame:response.steer",
        "error:steering_not_supported",
    ),
    _make(
        "lanes-marked",
        f"{_GUIDE}: stream_id",
        "Every event and error of a named lane carries its stream_id.",
        probe_lanes_marked,
        "field:stream_id",
    ),
    _make(
        "lanes-together",
        f"{_GUIDE}: stream_id",
        "Two lanes with requests at once have each its own whole stream.",
        probe_lanes_together,
        "field:stream_id",
    ),
    _make(
        "lane-order",
        f"{_GUIDE}: stream_id",
        "The requests of one lane are answered one after the other, in their order.",
        probe_lane_order,
        "field:stream_id",
    ),
    _make(
        "invalid-stream-id",
        f"{_GUIDE}: stream_id",
        "A stream_id that is none is refused with invalid_stream_id.",
        probe_bad_lane,
        "error:invalid_stream_id",
    ),
    _make(
        "stream-limit",
        f"{_GUIDE}: stream_id",
        "A connection has 32 named lanes; one more is refused with websocket_stream_limit_reached.",
        probe_lane_limit,
        "error:websocket_stream_limit_reached",
    ),
    _make(
        "warm-up",
        f"{_GUIDE}: generate",
        "A request with generate:false has no output, and what continues it has its whole context.",
        probe_warm_up,
        "field:generate",
    ),
    _make(
        "warm-up-empty",
        f"{_GUIDE}: generate",
        "A request with generate:false need have no input, and can be continued.",
        probe_warm_up_empty,
        "field:generate",
    ),
    _make(
        "continues-unstored",
        _GUIDE,
        "A continuation of a response with store:false on its connection shows the model the whole history.",
        probe_continues_unstored,
        "field:store",
        "field:previous_response_id",
    ),
    _make(
        "continues-stored",
        _GUIDE,
        "A response that was stored over HTTP is continued over WebSocket with its whole history.",
        probe_continues_http,
        "field:previous_response_id",
    ),
    _make(
        "continued-over-http",
        _GUIDE,
        "A response that was stored over WebSocket is continued over HTTP with its whole history.",
        probe_continued_over_http,
        "field:previous_response_id",
    ),
    _make(
        "fork-keeps-parent",
        f"{_GUIDE}: stream_id",
        "A failing continuation from another lane leaves the parent where it stands.",
        probe_fork_keeps,
        "field:stream_id",
    ),
    _make_free(
        "other-key",
        "ours: tenants",
        "A connection with another key continues nothing of the first one's.",
        probe_other_key,
        "endpoint:WebSocket /responses",
    ),
    _make(
        "lifecycle",
        _GUIDE,
        "The events come in the order of the lifecycle, are numbered from 0, and have one end.",
        probe_lifecycle,
        "frame:response.create",
    ),
    _make(
        "same-events",
        _GUIDE,
        "The events are those that the same request has in a stream over HTTP.",
        probe_same_events,
        "frame:response.create",
    ),
)
