"""The ways into a compaction, and the rungs that it is told to use; what the model is shown afterwards.

Each way is walked from the same tip, so that nothing differs but the way. It scores nothing. Invariant: what an
`Outcome` tells of the window is what the model was really sent for the first question after the compaction.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bench.memory.conversations import Conversation, Item
from bench.memory.model import Shown
from bench.memory.scoring import list_texts
from bench.memory.server import Chain, FaultError, Talk

QUESTION = "What is the next step, and what must not be touched?"
_TRIGGER: Item = {"type": "compaction_trigger"}
#: Too long for this model by a little, as it is when a server's count was wrong.
_OVERFLOWING_SHARE = 0.9
#: Somebody went on with a much smaller model.
_TENFOLD = 10
_NEVER_DUE_TOKENS = 10_000_000
#: A prompt fills this share of its window: compaction is close.
_FULL_SHARE = 0.9
#: Says nothing of what matters, as bad models do.
POOR_SUMMARY = (
    "The user asked for several changes in a code base, and the assistant worked on them with its tools. Some files "
    "were read and some commands were run. A few things went wrong at first and were looked into. The work is well "
    "under way and should simply be continued from where it stands, with the same care as before."
)


@dataclass(frozen=True)
class Rung:
    """What a compaction is told to do. `summary`: what the model writes where it is asked for one; None: it fails."""

    name: str
    method: str
    summary: str | None = None
    #: Marks every result as one to keep, so that nothing but what users showed can be dropped for free.
    keeps_results: bool = False
    #: The threshold that makes it due, as a share of the prompt: the pass must end well under it.
    due_share: float = 0.8
    #: The rungs that may be reported, and whether the model may be asked for a summary.
    allowed: frozenset[str] = frozenset({"elide", "drop_images", "summary", "cut"})
    asks_model: bool = False


FREE = frozenset({"elide", "drop_images"})
RUNGS: tuple[Rung, ...] = (
    Rung("auto", "auto", asks_model=True),
    Rung("elide", "elide", allowed=FREE),
    Rung("drop images", "elide", keeps_results=True, due_share=0.99, allowed=frozenset({"drop_images"})),
    Rung("extract", "extract"),
    Rung("model fails", "summary", asks_model=True),
    Rung("poor summary", "summary", summary=POOR_SUMMARY, asks_model=True),
)


@dataclass(frozen=True)
class Outcome:
    """A compaction and the question behind it. `held`: texts that the client has, where nothing is stored."""

    shown: Shown
    passes: Sequence[dict[str, Any]]
    #: The stored response whose window can be asked for; None where nothing is stored.
    response_id: str | None
    #: What the model that wrote summaries can read.
    window_tokens: int
    held: Sequence[str] = ()


@dataclass
class Case:
    """One conversation, talked to its end, and how long its prompt is with the question behind it."""

    talk: Talk
    conversation: Conversation
    chain: Chain
    prompt_tokens: int
    window_tokens: int = field(init=False)
    window_model: str = field(init=False)

    def __post_init__(self) -> None:
        self.window_tokens = int(self.prompt_tokens / _FULL_SHARE)
        self.window_model = self.talk.model.add_model(self.window_tokens, f"c{self.conversation.number}")

    def make_body(self, rung: Rung, **fields: Any) -> dict[str, Any]:
        """A request that compacts this conversation, by this rung."""
        return self.chain.make_body(
            model=self.window_model, antiphon=make_options(rung, self.chain), **fields
        )


Way: TypeAlias = Callable[[Case, Rung], Awaitable[Outcome]]


def make_options(rung: Rung, chain: Chain) -> dict[str, Any]:
    """Our request key: the method, and marks where results are to be kept."""
    if not rung.keeps_results:
        return {"method": rung.method}
    return {"method": rung.method, "marks": dict.fromkeys(chain.call_ids, "keep")}


async def compact_by_endpoint(case: Case, rung: Rung) -> Outcome:
    """`POST /v1/responses/compact`; its output is the beginning of the next input."""
    body = case.make_body(rung, previous_response_id=case.chain.tip)
    made = await case.talk.compact("/responses/compact", body)
    answer, shown = await case.chain.ask(QUESTION, model=case.window_model, input=made["output"])
    return Outcome(shown, read_passes(made), answer["id"], case.window_tokens)


async def compact_input_by_endpoint(case: Case, rung: Rung) -> Outcome:
    """The same for a client that holds its history and sends it."""
    body = case.make_body(rung, input=case.chain.items)
    made = await case.talk.compact("/responses/compact", body)
    _, shown = await case.chain.ask(QUESTION, model=case.window_model, input=made["output"], store=False)
    return Outcome(shown, read_passes(made), None, case.window_tokens, list_texts(case.chain.items))


async def trigger(case: Case, rung: Rung) -> Outcome:
    """A `compaction_trigger` at the end of a stored chain, which goes on by id."""
    body = case.make_body(rung, input=[_TRIGGER], previous_response_id=case.chain.tip)
    made = check_completed(await case.talk.compact("/responses", body))
    answer, shown = await case.chain.ask(QUESTION, model=case.window_model, previous_response_id=made["id"])
    return Outcome(shown, read_passes(made), answer["id"], case.window_tokens)


async def trigger_unstored(case: Case, rung: Rung) -> Outcome:
    """The same with `store: false`: the client sends everything, then the compaction item alone."""
    body = case.make_body(rung, input=[*case.chain.items, _TRIGGER], store=False)
    made = check_completed(await case.talk.compact("/responses", body))
    _, shown = await case.chain.ask(QUESTION, model=case.window_model, input=made["output"], store=False)
    return Outcome(shown, read_passes(made), None, case.window_tokens, list_texts(case.chain.items))


async def trigger_twice(case: Case, rung: Rung) -> Outcome:
    """A chain that is compacted in the middle of its work, goes on, and is compacted again at its end."""
    rounds = case.conversation.rounds
    chain = Chain(case.talk, case.conversation, case.window_model)
    passes: list[dict[str, Any]] = []
    for part in (rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]):
        await chain.play(part)
        body = chain.make_body(
            input=[*chain.take_results(), _TRIGGER],
            previous_response_id=chain.tip,
            antiphon=make_options(rung, chain),
        )
        made = check_completed(await case.talk.compact("/responses", body))
        chain.tip = made["id"]
        passes += read_passes(made)
    answer, shown = await chain.ask(QUESTION, previous_response_id=chain.tip)
    return Outcome(shown, passes, answer["id"], case.window_tokens)


async def compact_twice(case: Case, rung: Rung) -> Outcome:
    """The same by the endpoint, between two turns: its output begins a new chain, which it compacts again."""
    rounds = case.conversation.rounds
    middle = next(at for at in range(len(rounds) // 3, len(rounds)) if rounds[at].said)
    chain = Chain(case.talk, case.conversation, case.window_model)
    passes: list[dict[str, Any]] = []
    for part in (rounds[:middle], rounds[middle:]):
        await chain.play(part)
        body = chain.make_body(previous_response_id=chain.tip, antiphon=make_options(rung, chain))
        made = await case.talk.compact("/responses/compact", body)
        chain.tip, chain.results = None, made["output"]
        passes += read_passes(made)
    answer, shown = await chain.ask(QUESTION)
    return Outcome(shown, passes, answer["id"], case.window_tokens)


async def cross_threshold(case: Case, rung: Rung) -> Outcome:
    """`context_management` on a stored chain, in the response to the question itself."""
    threshold = int(case.prompt_tokens * rung.due_share)
    return await _ask_compacting(case, rung, case.window_model, case.window_tokens, threshold)


async def overflow(case: Case, rung: Rung) -> Outcome:
    """A model that refuses the question as too long, where a compaction is allowed and by all counts not due."""
    return await _overflow(case, rung, int(case.prompt_tokens * _OVERFLOWING_SHARE))


async def overflow_by_far(case: Case, rung: Rung) -> Outcome:
    """The same with a model whose window the conversation would fill ten times."""
    return await _overflow(case, rung, case.prompt_tokens // _TENFOLD)


async def _overflow(case: Case, rung: Rung, window_tokens: int) -> Outcome:
    label = f"c{case.conversation.number}-{rung.name.replace(' ', '-')}"
    model = case.talk.model.add_model(window_tokens, label, tells_window=False)
    return await _ask_compacting(case, rung, model, window_tokens, _NEVER_DUE_TOKENS)


async def _ask_compacting(case: Case, rung: Rung, model: str, window_tokens: int, threshold: int) -> Outcome:
    answer, shown = await case.chain.ask(
        QUESTION,
        model=model,
        previous_response_id=case.chain.tip,
        context_management=[{"type": "compaction", "compact_threshold": threshold}],
        antiphon=make_options(rung, case.chain),
    )
    return Outcome(shown, read_passes(check_completed(answer)), answer["id"], window_tokens)


@dataclass(frozen=True)
class Entrance:
    """A way in. `stored`: the server keeps all items, so nothing of them may be lost.

    `free`: whether it can end well without a summary.
    """

    name: str
    walk: Way
    stored: bool = True
    free: bool = True


ENTRANCES: tuple[Entrance, ...] = (
    Entrance("compact", compact_by_endpoint),
    Entrance("compact, twice", compact_twice),
    Entrance("trigger", trigger),
    Entrance("trigger, twice", trigger_twice),
    Entrance("threshold", cross_threshold),
    Entrance("overflow", overflow),
    Entrance("overflow, tenfold", overflow_by_far, free=False),
    Entrance("compact, store:false", compact_input_by_endpoint, stored=False),
    Entrance("trigger, store:false", trigger_unstored, stored=False),
)


def list_pairs() -> list[tuple[Entrance, Rung]]:
    """Every entrance with the rungs that it can end well by, in the order of the table."""
    return [
        (entrance, rung) for entrance in ENTRANCES for rung in RUNGS if entrance.free or rung.allowed - FREE
    ]


def read_passes(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What a response tells of its compaction."""
    passes: list[dict[str, Any]] = answer.get("antiphon", {}).get("compaction", {}).get("passes", [])
    return passes


def check_completed(answer: dict[str, Any]) -> dict[str, Any]:
    """The response; raises `FaultError` for one that did not complete."""
    if answer["status"] != "completed":
        raise FaultError(f"the response is {answer['status']}: {answer.get('error')}")
    return answer
