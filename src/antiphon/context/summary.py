"""The summary driver: rows -> a summary by a model, whatever the model and its window do; else an extract by rule.

Pure: it reaches the model through a callable and knows no backend. Invariants: at most
ceil(transcript / (window - reserve)) + 2 calls, and one repair for each; after a request that did not fit, every later
one is smaller; and there is always a summary.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from antiphon.context.budget import CompactionLimits
from antiphon.context.extract import make_extract
from antiphon.context.rows import Row, add_tokens
from antiphon.context.summary_answers import (
    BYTES_PER_TOKEN_MAX,
    ReadAnswer,
    SummaryAnswer,
    read_answer,
)
from antiphon.context.summary_prompt import (
    SPLIT_TOKENS,
    AnswerForm,
    Asking,
    Omissions,
    Piece,
    SummaryRequest,
    add_costs,
    ask_in_place,
    ask_with_transcript,
    describe_row,
    estimate_tokens,
    fit_pieces,
    list_keepable,
    make_pieces,
    make_summary_piece,
    measure_frame,
    take_window,
)
from antiphon.context.summary_texts import (
    DEFAULT_TEXTS,
    SummaryTexts,
    ask_again,
    note_omission,
    split_omission,
    warn_omission,
)
from antiphon.protocol.content import InputText
from antiphon.protocol.errors import (
    BackendError,
    BackendRefusedError,
    ContextOverflowError,
    shorten_quoted,
)

__all__ = [
    "AskModel",
    "Summary",
    "SummaryAnswer",
    "SummaryJob",
    "SummaryRequest",
    "SummaryTexts",
    "extract_summary",
    "summarise",
]

#: Failures in a row that end the attempt: requests that do not fit, errors, answers of no use.
FAILURES_MAX: Final = 3
#: Calls beyond those that the transcript needs.
SPARE_CALLS: Final = 2
#: Of a summary's budget, what its first line may take.
NOTICE_TOKENS: Final = 32
#: What an answer may have at least, and a transcript in a request.
ANSWER_TOKENS_MIN: Final = 64
ROOM_TOKENS_MIN: Final = 128
#: Behind a long conversation an answer may have less room than it should: no less than this share of it.
LEAST_ANSWER_SHARE: Final = 0.4
#: Of the window, what stays free for the error of an estimate.
MARGIN_SHARE: Final = 0.04
#: What is tried next after a request that did not fit, by nobody knows how much: as a share of it, where a limit of the
#: window was known, and where none was.
SMALLER_SHARE: Final = 0.55
MUCH_SMALLER_SHARE: Final = 0.25
#: Hardly a model has a smaller window.
COMMON_WINDOW_TOKENS: Final = 4_096
#: And at most, where a smaller one did fit.
TAKEN_SHARE_MAX: Final = 0.8
#: A text that nobody has refused yet may be a little denser than the one that was.
SCALE_MARGIN: Final = 1.05
#: No count is further from ours than this.
SCALE_MAX: Final = 8.0
#: An earlier summary may have this many times the tokens of an answer; a longer one is told as part of the transcript.
PREVIOUS_FACTOR: Final = 2
#: Unknown ids that a problem names.
_NAMED_MAX: Final = 5
_NO_CALLS_LEFT: Final = "the summary would take more calls than are allowed"

#: Asks a model; raises `ContextOverflowError` where the request does not fit, and `BackendError`.
AskModel: TypeAlias = Callable[[SummaryRequest], Awaitable[SummaryAnswer]]
_MakeRequest: TypeAlias = Callable[[AnswerForm, str], SummaryRequest]


class SummaryJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be summarised, and what the summariser can do.

    `window_tokens`: the backend's real limit, if known. `prompt_tokens`: of the window's whole prompt; None where the
    summary cannot be asked for behind it.
    """

    #: Oldest first.
    rows: Sequence[Row]
    #: Those of them that stay in the window: told only so that the others are understood.
    stays: frozenset[str] = frozenset()
    #: The text of an earlier summary, which this one takes up.
    previous: str = ""
    #: The items that may be kept whole, and their tokens.
    selectable: Mapping[str, int] = msgspec.field(default_factory=dict)
    retained_tokens: int = 0
    window_tokens: int | None = None
    prompt_tokens: int | None = None
    #: What the whole summary may have.
    summary_tokens: int
    limits: CompactionLimits = CompactionLimits()
    sees_images: bool = False
    takes_schema: bool = False
    forces_tool: bool = False
    texts: SummaryTexts = DEFAULT_TEXTS
    describe: Callable[[Row], str] = describe_row


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, the items that it wants to be kept (oldest first), and how it came about.

    `calls` are the model calls without the `repairs`; `omitted_*`: what of the rows the summariser could not read.
    """

    text: str
    retained: tuple[str, ...] = ()
    #: Whether it, or the end of it, was put together by rule.
    is_extract: bool = False
    calls: int = 0
    repairs: int = 0
    omitted_items: int = 0
    omitted_tokens: int = 0
    problems: tuple[str, ...] = ()
    #: What the model takes, as far as refusals have told it or made it likely; None where there were none.
    learned_window: int | None = None


async def summarise(job: SummaryJob, ask: AskModel) -> Summary:
    """Have a model write the summary: behind the conversation where that fits, else from windows that do."""
    if not job.rows:
        return Summary(text=job.previous)
    run = _start(job, ask)
    try:
        text = await _summarise_in_place(run)
        if text is None:
            text = await _summarise_windows(run)
    except _StoppedError as stop:
        run.problems.append(str(stop))
        return _finish(run, _extract_rest(run), is_extract=True)
    return _finish(run, text, is_extract=False)


def extract_summary(job: SummaryJob) -> Summary:
    """The summary that no model writes."""
    if not job.rows:
        return Summary(text=job.previous)
    previous, _, _ = split_omission(job.previous)
    return Summary(
        text=make_extract(_list_gone(job.rows, job), job.summary_tokens, previous), is_extract=True
    )


def _list_gone(rows: Sequence[Row], job: SummaryJob) -> list[Row]:
    return [row for row in rows if row.id not in job.stays]


class _StoppedError(Exception):
    """No model gives this summary; the message says why."""


class _Run(msgspec.Struct, kw_only=True):
    """How far a job has come, and what it has learned of the backend."""

    job: SummaryJob
    ask: AskModel
    form: AnswerForm
    #: The limit that is believed, in tokens as the backend counts, and how many of these one of ours is.
    window: int | None
    scale: float = 1.0
    #: The largest request that the backend took, its answer included.
    taken: int = 0
    #: The summary of what has been told, and what has not been told yet.
    running: str
    pieces: list[Piece]
    omissions: Omissions
    chosen: set[str] = msgspec.field(default_factory=set)
    #: Of the whole transcript.
    total_tokens: int = 0
    #: Known once windows are told.
    calls_max: int | None = None
    calls: int = 0
    repairs: int = 0
    failures: int = 0
    errors: int = 0
    problems: list[str] = msgspec.field(default_factory=list)

    def fail(self, problem: str) -> None:
        """Note a failure; the third in a row stops the run."""
        self.problems.append(problem)
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            raise _StoppedError(f"{FAILURES_MAX} attempts in a row failed")


def _start(job: SummaryJob, ask: AskModel) -> _Run:
    form: AnswerForm = "schema" if job.takes_schema else "call" if job.forces_tool else "prose"
    previous, _, _ = split_omission(job.previous)
    return _Run(
        job=job,
        ask=ask,
        form=form,
        window=job.window_tokens,
        running=previous.strip(),
        pieces=[],
        omissions=Omissions(),
    )


# The two ways


async def _summarise_in_place(run: _Run) -> str | None:
    """The summary asked for behind the conversation; None where that does not fit."""
    job = run.job
    if job.prompt_tokens is None:
        return None
    listed = list_keepable(job.rows, job.selectable, job.describe) if _retains(job) else ""
    most = _share_answer(job)
    empty = ask_in_place(_make_asking(job, run.form, most), listed, "")
    size = job.prompt_tokens + _measure_texts(empty)
    left = most if run.window is None else min(run.window - size, most)
    if left < most * LEAST_ANSWER_SHARE:
        return None

    def make(form: AnswerForm, reason: str) -> SummaryRequest:
        return ask_in_place(_make_asking(job, form, left), listed, reason)

    try:
        return (await _ask_checked(run, make, size)).text
    except ContextOverflowError:
        return None


async def _summarise_windows(run: _Run) -> str:
    """The summary from windows of the transcript, oldest first, each folded into the next."""
    job = run.job
    run.pieces = make_pieces(job.rows, job.describe, sees_images=job.sees_images, omissions=run.omissions)
    run.total_tokens = add_tokens(job.rows) or add_costs(run.pieces)
    if estimate_tokens(run.running) > PREVIOUS_FACTOR * _share_answer(job):
        run.pieces.insert(0, make_summary_piece(run.running))
        run.running = ""
    while run.pieces:
        await _tell_window(run)
    return run.running


class _Frame(msgspec.Struct, frozen=True):
    """The sizes of a request with a transcript, in our tokens: what the transcript may have, and the rest."""

    answer_tokens: int
    room_tokens: int
    fixed_tokens: int
    calls_max: int


async def _tell_window(run: _Run) -> None:
    """Tell as much of the transcript as fits into one request; what it gives is the running summary."""
    job, frame = run.job, _measure_window(run)
    run.calls_max = frame.calls_max
    left = frame.calls_max - run.calls
    if left <= 0:
        raise _StoppedError(_NO_CALLS_LEFT)
    if frame.room_tokens < ROOM_TOKENS_MIN:
        raise _StoppedError("the window has no room for a transcript")
    omissions = run.omissions.copy()
    capacity = frame.room_tokens if left == 1 else left * (frame.room_tokens - SPLIT_TOKENS)
    part, rest = take_window(fit_pieces(run.pieces, capacity, omissions), frame.room_tokens, omissions)
    warning = warn_omission(omissions.items, omissions.tokens) if omissions.items else ""
    running = run.running

    def make(form: AnswerForm, reason: str) -> SummaryRequest:
        asking = _make_asking(job, form, frame.answer_tokens)
        return ask_with_transcript(
            asking, part, running=running, warning=warning, is_last=not rest, reason=reason
        )

    try:
        read = await _ask_checked(run, make, frame.fixed_tokens + add_costs(part))
    except ContextOverflowError:
        # What was learned of the limit makes the next window smaller.
        return
    run.running, run.pieces, run.omissions = read.text, rest, omissions


def _measure_window(run: _Run) -> _Frame:
    """What of a request the transcript may have, now that the limit is believed to be this."""
    job = run.job
    answer = _share_answer(job)
    warning = warn_omission(999, 999_999)
    texts = measure_frame(_make_asking(job, run.form, answer), warning, estimate_tokens(ask_again("-" * 60)))
    if run.window is None:
        everything = add_costs(run.pieces)
        fixed = texts + _measure_running(run.running, answer)
        return _Frame(answer, max(everything, ROOM_TOKENS_MIN), fixed, 1 + SPARE_CALLS)
    window = run.window
    margin = int(window * MARGIN_SHARE)
    most = int(window * job.limits.reserve_share)
    answer = max(min(answer, (most - margin - int(texts * run.scale)) // 2), min(answer, ANSWER_TOKENS_MIN))
    fixed = texts + _measure_running(run.running, answer)
    room = int((window - answer - margin) / run.scale) - fixed
    reserve = min(int(texts * run.scale) + 2 * answer + margin, most)
    needed = -(-int(run.total_tokens * run.scale) // max(window - reserve, 1))
    return _Frame(answer, room, fixed, needed + SPARE_CALLS)


def _measure_running(running: str, answer_tokens: int) -> int:
    """The tokens of a summary that a model wrote within its limit, or an earlier one."""
    size = len(running.encode())
    return max(min(estimate_tokens(running), answer_tokens), size // BYTES_PER_TOKEN_MAX)


def _measure_texts(request: SummaryRequest) -> int:
    return sum(estimate_tokens(part.text) for part in request.parts if isinstance(part, InputText))


def _share_answer(job: SummaryJob) -> int:
    """What of the summary's budget the model may write."""
    return max(job.summary_tokens - NOTICE_TOKENS, job.summary_tokens // 2, 1)


def _retains(job: SummaryJob) -> bool:
    return bool(job.selectable) and job.retained_tokens > 0


def _make_asking(job: SummaryJob, form: AnswerForm, answer_tokens: int) -> Asking:
    return Asking(texts=job.texts, form=form, answer_tokens=answer_tokens, retains=_retains(job))


# One call


async def _ask_checked(run: _Run, make: _MakeRequest, size_tokens: int) -> ReadAnswer:
    """An answer that can be used, repaired once if need be. Raises `ContextOverflowError` with the limit learned."""
    read = await _ask_once(run, make, size_tokens)
    if read.fault:
        run.fail(f"an answer could not be used: {read.fault}")
        run.repairs += 1
        try:
            read = await _ask(run, make("prose", read.fault), size_tokens)
        except ContextOverflowError:
            raise
        except BackendError as error:
            raise _StoppedError("the model failed when it was asked again") from error
        if read.fault:
            raise _StoppedError(f"the repaired answer could not be used: {read.fault}")
    if read.is_cut:
        run.problems.append("an answer was cut at its limit; what it said before was used")
    run.failures = 0
    _choose(run, read.references)
    return read


async def _ask_once(run: _Run, make: _MakeRequest, size_tokens: int) -> ReadAnswer:
    """One call; after an error that is not about the size, one more in the whole run."""
    try:
        run.calls += 1
        return await _ask(run, make(run.form, ""), size_tokens)
    except ContextOverflowError:
        raise
    except BackendError as error:
        if isinstance(error, BackendRefusedError):
            # It may be the form that is refused: a schema beside tools, a forced call.
            run.form = "prose"
        if run.calls_max is not None and run.calls >= run.calls_max:
            raise _StoppedError(_NO_CALLS_LEFT) from error
        run.calls += 1
        return await _ask(run, make(run.form, ""), size_tokens)


async def _ask(run: _Run, request: SummaryRequest, size_tokens: int) -> ReadAnswer:
    try:
        answer = await run.ask(request)
        run.taken = max(run.taken, int(size_tokens * run.scale) + request.max_output_tokens)
    except ContextOverflowError as error:
        _learn_limit(run, size_tokens, request.max_output_tokens, error)
        run.fail(f"a request did not fit: {error.message}")
        raise
    except BackendError as error:
        run.errors += 1
        run.fail(f"the model could not be asked: {error.message}")
        if run.errors > 1:
            raise _StoppedError("the model failed twice") from error
        raise
    return read_answer(
        answer,
        asked_call=request.forced_tool,
        allowed_tokens=request.max_output_tokens,
        demands=run.job.texts.demands,
    )


def _learn_limit(run: _Run, size_tokens: int, answer_tokens: int, error: ContextOverflowError) -> None:
    """Believe the numbers of a refusal; where they do not explain it, the limit is well under what was refused."""
    size = max(size_tokens * run.scale, 1.0)
    if error.prompt_tokens is not None and error.prompt_tokens > size:
        run.scale = min(run.scale * error.prompt_tokens / size * SCALE_MARGIN, SCALE_MAX)
        size = float(error.prompt_tokens)
    limits = [limit for limit in (run.window, error.window_tokens) if limit is not None]
    run.window = min(limits, default=None)
    refused = size + answer_tokens
    if run.window is not None and run.window < refused:
        return
    was_told = run.job.window_tokens is not None or error.window_tokens is not None
    share = SMALLER_SHARE
    if not was_told:
        share = max(MUCH_SMALLER_SHARE, min(SMALLER_SHARE, COMMON_WINDOW_TOKENS / refused))
    if run.taken < refused:
        # What it took before it may take again.
        share = max(share, min(run.taken / refused, TAKEN_SHARE_MAX))
    if error.window_tokens is not None:
        # The limit is sure; so it counts more than we do.
        run.scale = min(run.scale / share, SCALE_MAX)
    else:
        run.window = int(refused * share)


# The items to keep


def _choose(run: _Run, references: Iterable[str]) -> None:
    """Take down the items that an answer names, by their ids or by what stands before them in the transcript."""
    job = run.job
    unknown = []
    for reference in references if _retains(job) else ():
        row_id = reference
        number = reference.removeprefix("#")
        if row_id not in job.selectable and number.isascii() and number.isdigit() and len(number) < 10:
            at = int(number) - 1
            row_id = job.rows[at].id if 0 <= at < len(job.rows) else ""
        if row_id in job.selectable:
            run.chosen.add(row_id)
        else:
            unknown.append(shorten_quoted(reference))
    if unknown:
        more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
        run.problems.append(f"items that cannot be kept were named: {', '.join(unknown[:_NAMED_MAX])}{more}")


def _keep_newest(job: SummaryJob, chosen: set[str]) -> tuple[str, ...]:
    """Of the chosen items the newest that fit, oldest first."""
    places = {row.id: at for at, row in enumerate(job.rows)}
    ordered = sorted(
        (each for each in job.selectable if each in chosen), key=lambda each: places.get(each, -1)
    )
    kept = []
    left = job.retained_tokens
    for row_id in reversed(ordered):
        if job.selectable[row_id] <= left:
            kept.append(row_id)
            left -= job.selectable[row_id]
    return tuple(reversed(kept))


# The end


def _extract_rest(run: _Run) -> str:
    """An extract of what no model has told, behind what one has."""
    first = run.pieces[0].at if run.pieces else 0
    if first < 0 or not run.running:
        previous, _, _ = split_omission(run.job.previous)
        return make_extract(_list_gone(run.job.rows, run.job), _share_answer(run.job), previous)
    return make_extract(_list_gone(run.job.rows[first:], run.job), _share_answer(run.job), run.running)


def _finish(run: _Run, text: str, *, is_extract: bool) -> Summary:
    job, omissions = run.job, run.omissions
    kept = _keep_newest(job, run.chosen)
    if len(kept) < len(run.chosen):
        run.problems.append(f"{len(run.chosen) - len(kept)} chosen items have no room")
    _, earlier_items, earlier_tokens = split_omission(job.previous)
    items, tokens = earlier_items + omissions.items, earlier_tokens + omissions.tokens
    return Summary(
        text=f"{note_omission(items, tokens)}\n\n{text}" if items else text,
        retained=kept,
        is_extract=is_extract,
        calls=run.calls,
        repairs=run.repairs,
        omitted_items=omissions.items,
        omitted_tokens=omissions.tokens,
        problems=tuple(run.problems),
        learned_window=run.window if run.window != job.window_tokens else None,
    )
