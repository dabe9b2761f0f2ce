"""Every conversation by every entrance and rung: run, scored and added up.

It prints nothing. Invariants: a cell of the table is the sum of its runs; what must not happen is in `faults`.
"""

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from antiphon.client import ClientError, ConnectionFailedError
from bench.memory.conversations import Conversation
from bench.memory.entrances import QUESTION, Case, Entrance, Outcome, Rung, list_pairs
from bench.memory.facts import Fact, Kind
from bench.memory.model import read_message
from bench.memory.scoring import Score, Where, read_window, score
from bench.memory.server import Chain, FaultError, Talk

#: More than any conversation here: the talk itself never meets its window.
_TALK_WINDOW_TOKENS = 10_000_000
#: What a summary's request reads of its window at least, and how many calls there may be beside those that read.
_READ_SHARE = 0.6
_MORE_CALLS = 2
#: Lost facts that a fault quotes.
_QUOTED = 3


@dataclass
class Cell:
    """The sums of one entrance and rung."""

    entrance: Entrance
    rung: Rung
    runs: int = 0
    compacted: int = 0
    places: Counter[Where] = field(default_factory=Counter)
    #: Facts of a kind, and how many of them stand in the window.
    kinds: Counter[Kind] = field(default_factory=Counter)
    kinds_verbatim: Counter[Kind] = field(default_factory=Counter)
    tokens_before: int = 0
    tokens_after: int = 0
    model_calls: int = 0
    #: How often each rung was reported.
    rungs: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The row of the table."""
        return f"{self.entrance.name} / {self.rung.name}"

    @property
    def facts(self) -> int:
        """All that were looked for."""
        return self.places.total()

    def add(self, found: Score) -> None:
        """One more conversation's facts."""
        self.places.update(found.count())
        for fact, where in found.places.items():
            self.kinds[fact.kind] += 1
            self.kinds_verbatim[fact.kind] += where == "verbatim"


@dataclass(frozen=True)
class Fault:
    """What must not happen: in which row of the table, in which conversation (None: in all), and what."""

    row: str
    conversation: int | None
    text: str


@dataclass
class Tally:
    """All cells, in the order of the table, and the faults."""

    cells: list[Cell] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    conversations: int = 0

    @property
    def lost(self) -> int:
        """Facts that are lost though everything was stored."""
        return sum(cell.places["lost"] for cell in self.cells if cell.entrance.stored)

    @property
    def is_good(self) -> bool:
        """Nothing lost, nothing wrong."""
        return not self.lost and not self.faults


async def run_all(talk: Talk, conversations: Iterable[Conversation], tell: Callable[[int], None]) -> Tally:
    """The whole table; `tell` hears how many conversations are done."""
    tally = Tally([Cell(entrance, rung) for entrance, rung in list_pairs()])
    for conversation in conversations:
        case = await _open_case(talk, conversation, tally)
        for cell in tally.cells:
            try:
                texts = [text async for text in _run_cell(case, cell)]
            except (ClientError, ConnectionFailedError, FaultError) as error:
                texts = [str(error)]
            tally.faults += [Fault(cell.name, conversation.number, text) for text in texts]
        talk.forget_fetched()
        tally.conversations += 1
        tell(tally.conversations)
    tally.faults += [
        Fault(cell.name, None, "no conversation was compacted")
        for cell in tally.cells
        if cell.runs and not cell.compacted
    ]
    return tally


async def _open_case(talk: Talk, conversation: Conversation, tally: Tally) -> Case:
    """Talk the conversation, and look whether all facts are there before anything is compacted."""
    model = talk.model.add_model(_TALK_WINDOW_TOKENS, "talk")
    chain = Chain(talk, conversation, model)
    await chain.play(conversation.rounds)
    _, shown = await chain.ask(QUESTION, previous_response_id=chain.tip)
    found = await score(conversation.facts, read_window(shown.system, shown.messages), talk.fetch)
    missing = [fact for fact, where in found.places.items() if where != "verbatim"]
    if missing:
        tally.faults.append(Fault("not compacted", conversation.number, f"{_quote(missing)} missing"))
    return Case(talk, conversation, chain, shown.tokens)


async def _run_cell(case: Case, cell: Cell) -> AsyncIterator[str]:
    """One conversation more in a cell; what is wrong with it."""
    model, rung = case.talk.model, cell.rung
    model.summary, model.summary_calls = rung.summary, 0
    cell.runs += 1
    outcome = await cell.entrance.walk(case, rung)
    window = read_window(outcome.shown.system, outcome.shown.messages)
    found = await score(case.conversation.facts, window, case.talk.fetch, outcome.held)
    cell.add(found)
    cell.compacted += any(not each.get("refused") for each in outcome.passes)
    cell.tokens_before += case.prompt_tokens
    cell.tokens_after += outcome.shown.tokens
    cell.model_calls += model.summary_calls
    cell.rungs.update(rung for each in outcome.passes for rung in each["rungs"])
    for fault in _list_faults(case, cell, outcome, found):
        yield fault
    if outcome.response_id is not None:
        report = await case.talk.read_window(outcome.response_id)
        if (report["system"], report["messages"]) != (outcome.shown.system, outcome.shown.messages):
            yield "the window report is not what the model was sent"


def _list_faults(case: Case, cell: Cell, outcome: Outcome, found: Score) -> Iterable[str]:
    """What is wrong with one run."""
    if cell.entrance.stored and (lost := found.list_lost()):
        yield f"{_quote(lost)} lost"
    if found.dead and cell.entrance.stored:
        yield f"nothing is behind {len(found.dead)} named ids: {', '.join(found.dead[:_QUOTED])}"
    passes = outcome.passes
    told_calls = sum(each["model_calls"] for each in passes)
    if told_calls != case.talk.model.summary_calls:
        yield f"{told_calls} model calls are told, {case.talk.model.summary_calls} were made"
    if case.talk.model.summary_calls and not cell.rung.asks_model:
        yield "a model was called"
    if odd := {rung for each in passes for rung in each["rungs"]} - cell.rung.allowed:
        yield f"the rungs {', '.join(sorted(odd))} were used"
    if twice := _find_repeated(case.conversation, outcome):
        yield f"{len(twice)} user messages stand in the window twice: {twice[0][:60]!r}"
    yield from _list_number_faults(case, outcome)


def _list_number_faults(case: Case, outcome: Outcome) -> Iterable[str]:
    for each in outcome.passes:
        before, after = each["tokens_before"], each["tokens_after"]
        if not each.get("refused") and after >= before:
            yield f"a pass went from {before} to {after} tokens and was not refused"
        limit = math.ceil(before / (outcome.window_tokens * _READ_SHARE)) + _MORE_CALLS + each["repairs"]
        if each["model_calls"] > limit:
            yield f"{each['model_calls']} model calls for {before} tokens, where {limit} are the most"
    done: list[dict[str, Any]] = [each for each in outcome.passes if not each.get("refused")]
    if done and outcome.shown.tokens >= case.prompt_tokens:
        yield f"{case.prompt_tokens} tokens before, {outcome.shown.tokens} after"


def _find_repeated(conversation: Conversation, outcome: Outcome) -> list[str]:
    """What users said that stands more than once among the messages; pictures may have become lines behind it."""
    messages = [message for message in outcome.shown.messages if message["role"] == "user"]
    texts = [read_message(message) for message in messages]
    said = [each.said for each in conversation.rounds if each.said]
    return [each for each in said if sum(text.startswith(each) for text in texts) > said.count(each)]


def _quote(facts: Sequence[Fact]) -> str:
    quoted = ", ".join(f"{fact.kind} {_shorten(fact.value)!r} ({fact.place})" for fact in facts[:_QUOTED])
    return f"{len(facts)} facts ({quoted})"


def _shorten(value: str) -> str:
    """All pictures begin alike."""
    return value[:60] if not value.startswith("data:") else f"...{value[-24:]}"
