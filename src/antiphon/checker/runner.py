"""The run: greet the server, try each requirement by itself, report.

It knows no probe's inside. Invariant: every chosen requirement gets exactly one verdict, in bounded time,
whatever the server or a probe does.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from antiphon.checker.recall import measure_recall
from antiphon.checker.report import Recall, Report, Result, clean_outcome, clean_text
from antiphon.checker.requirements import MANIFEST, Requirement
from antiphon.checker.requirements.speaking import GREETING
from antiphon.checker.socket_line import FRAME_S
from antiphon.checker.subject import CHAIN_ROUNDS, WINDOW_TOKENS, Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, Verdict, undecided
from antiphon.client import NetworkTransport, Transport, resolve_responses_url

#: Where an application in this process has its routes.
DEFAULT_PREFIX = "/v1"
#: The time one probe may take; the long chain is the slowest.
PROBE_TIMEOUT_S = 300.0

Found = TypeVar("Found")


class CheckOptions(msgspec.Struct, frozen=True):
    """How a run is made. `seed` decides every random word and id.

    `second_key` is a key of another tenant, `restart` restarts the server, `recall_words` is how many words
    are planted to measure the model's recall, `mcp_url` is an MCP server that the server can reach, `frame_s` is
    how long the next frame of a WebSocket is waited for at first.
    """

    requirements: Sequence[Requirement] = MANIFEST
    api_key: str | None = None
    seed: int = 0
    timeout_s: float = PROBE_TIMEOUT_S
    rounds: int = CHAIN_ROUNDS
    window_tokens: int = WINDOW_TOKENS
    second_key: str | None = None
    restart: Callable[[], Awaitable[None]] | None = None
    recall_words: int = 0
    mcp_url: str | None = None
    frame_s: float = FRAME_S


async def run_check(
    server: str | Transport,
    model: str | None,
    options: CheckOptions | None = None,
    on_progress: Callable[[Result], None] | None = None,
) -> Report:
    """Tries every chosen requirement against a server (host, base or /responses URL, or a transport).

    Without a model the server's first one is taken, and a note says so. `on_progress` gets each result as it
    comes; where the server cannot be asked at all, nobody. Raises `AddressError` where the text is no address.
    """
    chosen = options or CheckOptions()
    if not isinstance(server, str):
        subject = _make_subject(server, DEFAULT_PREFIX, model, chosen)
        return await _check(subject, "in this process", chosen, on_progress)
    base, prefix = resolve_responses_url(server)
    transport = NetworkTransport(base)
    try:
        subject = _make_subject(transport, prefix, model, chosen)
        return await _check(subject, f"{base}{prefix}/responses", chosen, on_progress)
    finally:
        await transport.close()


def _make_subject(transport: Transport, prefix: str, model: str | None, options: CheckOptions) -> Subject:
    return Subject(
        transport,
        model or "",
        prefix=prefix,
        api_key=options.api_key,
        seed=options.seed,
        rounds=options.rounds,
        window_tokens=options.window_tokens,
        timeout_s=options.timeout_s,
        second_key=options.second_key,
        restart=options.restart,
        mcp_url=options.mcp_url,
        frame_s=options.frame_s,
    )


async def _check(
    subject: Subject, server: str, options: CheckOptions, on_progress: Callable[[Result], None] | None
) -> Report:
    keys = (options.api_key, options.second_key)
    notes: list[str] = []
    unreachable = await _bound(_greet(subject, notes), options.timeout_s)
    if unreachable is not None and subject.was_denied:
        remedy = "name the variable that holds the server's API key with --key-env"
        unreachable = msgspec.structs.replace(unreachable, explanation=f"{unreachable.explanation}; {remedy}")
    results = []
    for requirement in options.requirements:
        started = time.monotonic()
        subject.start_probe(requirement.id)
        outcome = unreachable
        if outcome is None:
            outcome = await _bound(requirement.probe(subject), options.timeout_s)
        result = _make_result(requirement, outcome, time.monotonic() - started, keys)
        results.append(result)
        if on_progress is not None and unreachable is None:
            on_progress(result)
    recall = None
    if options.recall_words and unreachable is None:
        recall = await _measure(subject, options)
    notes += [
        f"{name} is left out, the server refuses it ({told})" for name, told in subject.left_out.items()
    ]
    notes += [f"in a stream: {fault}" for fault in subject.stream_faults]
    return Report(
        clean_text(server, *keys),
        clean_text(subject.model, *keys),
        options.seed,
        results,
        [clean_text(note, *keys) for note in notes],
        subject.tally.answers,
        recall,
        clean_outcome(unreachable, *keys).explanation if unreachable is not None else None,
    )


async def _measure(subject: Subject, options: CheckOptions) -> Recall:
    """The words that were tried; a word that cannot be ends the measurement, with the reason."""
    subject.start_probe("recall")
    total = Recall(0, 0, 0, 0)
    for _ in itertools.repeat(None, options.recall_words):
        found = await _bound(measure_recall(subject), options.timeout_s)
        if isinstance(found, Outcome):
            told = clean_text(found.explanation, options.api_key, options.second_key)
            return msgspec.structs.replace(total, stopped=told)
        total = Recall(
            total.words + 1,
            total.by_id + found.by_id,
            total.no_history + found.no_history,
            total.counted + found.counted,
        )
    return total


async def _greet(subject: Subject, notes: list[str]) -> None:
    """The first answer: no model, no server or no access decides every requirement as unknown."""
    if not subject.model:
        models = await subject.list_models()
        if not models:
            raise UndecidedError("no model was named, and the server lists none")
        subject.model = models[0]
        notes.append(
            f"no model was named; took {models[0]}, the first of {len(models)} that the server lists"
        )
    subject.start_probe("greeting")
    await subject.ask([user(GREETING)])


async def _bound(work: Awaitable[Found], timeout_s: float) -> Found | Outcome:
    """What the work found; what it cannot decide, or not in time, or breaks on, is unknown."""
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        return undecided(f"not finished in {timeout_s:g} s")
    except UndecidedError as reason:
        return Outcome(Verdict.UNKNOWN, str(reason), needs=reason.needs)
    except Exception as error:  # noqa: BLE001 - one broken probe must not take the others with it
        return undecided(f"the probe broke: {type(error).__name__}: {error}")


def _make_result(
    requirement: Requirement, outcome: Outcome, duration_s: float, keys: tuple[str | None, ...]
) -> Result:
    shown = clean_outcome(outcome, *keys)
    return Result(
        id=requirement.id,
        area=requirement.area,
        source=requirement.source,
        sentence=requirement.sentence,
        verdict=shown.verdict,
        explanation=shown.explanation,
        evidence=shown.evidence,
        duration_s=round(duration_s, 3),
        needs=shown.needs,
    )
