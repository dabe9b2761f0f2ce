"""What a compaction costs the prompt cache of the embedded model: the summary's call, and the rounds behind it.

The server is a process of its own, as users start it. It knows the wire and the generator. Invariant: tokens and cached
tokens are the model server's own counts.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.fetch_model import SMALL_MODEL, fetch_model

from antiphon.client import NetworkTransport, ResponsesClient, TransportLimits
from bench.memory.conversations import Conversation, Item, Round, make_conversation, make_user_message
from bench.memory.entrances import QUESTION, read_passes
from bench.memory.scoring import Score, list_texts, read_window, score
from bench.memory.server import Reader
from bench.processes import START_TIMEOUT_S, BenchError, Child, read_port

#: The window of the model here; small, so that it is full soon.
WINDOW_TOKENS = 4_096
#: One conversation each: it goes on until a prompt fills this share of the window. The summary can be asked for behind
#: the cached prompt only where there is room for it.
FILLED_SHARES = (0.45, 0.45, 0.75)
#: No further conversation is begun after this long.
BEGIN_WITHIN_S = 150.0
_ANSWER_TOKENS = 32
#: Until an answer has come: prompts of a whole window are read, on whatever machine this is.
_WAIT_S = 300.0
#: Loading the model included.
_START_S = 4 * START_TIMEOUT_S


@dataclass(frozen=True)
class Usage:
    """The tokens of one prompt, and how many of them were in the model's cache."""

    tokens: int
    cached: int

    @property
    def share(self) -> float:
        """Cached, of all."""
        return self.cached / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class RealRow:
    """One conversation: the last round before the compaction, the summary's calls, the two rounds after it."""

    before: Usage
    summary: Usage
    model_calls: int
    written_by: str
    after: Usage
    later: Usage
    found: Score


async def measure_real(seed: int, shares: Sequence[float] = FILLED_SHARES) -> list[RealRow]:
    """Some conversations, one after another. Raises `ModelError` where the model cannot be had."""
    path = fetch_model(SMALL_MODEL)
    start_s = time.monotonic()
    rows: list[RealRow] = []
    with tempfile.TemporaryDirectory(prefix="antiphon-memory-") as folder, _start(path, Path(folder)) as port:
        async with _open_reader(port) as reader:
            name = (await reader.client.list_models()).body["data"][0]["id"]
            for number, share in enumerate(shares):
                if time.monotonic() - start_s < BEGIN_WITHIN_S:
                    rows.append(await _measure(reader, name, make_conversation(seed, number, "tiny"), share))
    return rows


def render_real(rows: Sequence[RealRow]) -> str:
    """A line for each conversation."""
    heads = ("last round before", "summary's calls", "next round", "round after it")
    lines = [
        f"embedded model, window {WINDOW_TOKENS:,}: prompt tokens, and the share of them that was cached",
        "  ".join(
            [
                "#",
                *(f"{head:>17}" for head in heads),
                "  calls",
                "summary",
                "facts: verbatim, fetchable, lost",
            ]
        ),
    ]
    for number, row in enumerate(rows):
        usages = (row.before, row.summary, row.after, row.later)
        told = [f"{f'{each.tokens:,} ({each.share:.0%})':>17}" for each in usages]
        places = row.found.count()
        facts = f"{places['verbatim']}, {places['fetchable']}, {places['lost']}"
        lines.append("  ".join([str(number), *told, f"{row.model_calls:>7}", f"{row.written_by:7}", facts]))
    return "\n".join(lines)


@contextmanager
def _start(model: Path, folder: Path) -> Iterator[int]:
    """`antiphon serve --local` with that model; yields its port."""
    (folder / "antiphon.toml").write_text(f"[local]\ncontext_tokens = {WINDOW_TOKENS}\n", encoding="utf-8")
    arguments = (
        "serve",
        "--local",
        "--model-file",
        str(model),
        "--port",
        "0",
        "--data",
        str(folder / "data"),
    )
    child = Child("-m", "antiphon", *arguments, folder=folder)
    try:
        yield read_port(child, _START_S)
    finally:
        child.stop()


@asynccontextmanager
async def _open_reader(port: int) -> AsyncIterator[Reader]:
    client = ResponsesClient(
        NetworkTransport(f"http://127.0.0.1:{port}", TransportLimits(idle_timeout_s=_WAIT_S))
    )
    try:
        yield Reader(client)
    finally:
        await client.close()


async def _measure(reader: Reader, model: str, conversation: Conversation, share: float) -> RealRow:
    sent: list[Item] = []
    talk = _RealTalk(reader, model, conversation.instructions)
    answer: dict[str, Any] = {"id": None}
    for items in _list_turns(conversation.rounds):
        answer = await talk.ask(items, answer["id"])
        sent += items
        if _read_usage(answer["usage"]).tokens >= share * WINDOW_TOKENS:
            break
    before = _read_usage(answer["usage"])
    compacted = await talk.ask([{"type": "compaction_trigger"}], answer["id"], limited=False)
    passes = read_passes(compacted)
    if not passes:
        raise BenchError("nothing is told of the compaction")
    after = await talk.ask([make_user_message(QUESTION)], compacted["id"])
    later = await talk.ask([make_user_message("Go on.")], after["id"])
    report = await reader.read_window(after["id"])
    told = list_texts(sent)
    facts = [fact for fact in conversation.facts if any(fact.value in text for text in told)]
    found = await score(facts, read_window(report["system"], report["messages"]), reader.fetch)
    return RealRow(
        before=before,
        summary=_read_usage(compacted["usage"]),
        model_calls=sum(each["model_calls"] for each in passes),
        written_by=", ".join(str(each["summary"]) for each in passes),
        after=_read_usage(after["usage"]),
        later=_read_usage(later["usage"]),
        found=found,
    )


@dataclass(frozen=True)
class _RealTalk:
    reader: Reader
    model: str
    instructions: str

    async def ask(self, items: list[Item], parent: str | None, *, limited: bool = True) -> dict[str, Any]:
        """One response; raises `BenchError` for one that failed."""
        body: dict[str, Any] = {
            "model": self.model,
            "instructions": self.instructions,
            "input": items,
            "temperature": 0,
        }
        if limited:
            body["max_output_tokens"] = _ANSWER_TOKENS
        if parent is not None:
            body["previous_response_id"] = parent
        answer: dict[str, Any] = (await self.reader.client.create(body)).body
        if answer["status"] not in ("completed", "incomplete"):
            raise BenchError(f"the response is {answer['status']}: {answer['error']}")
        return answer


def _list_turns(rounds: Sequence[Round]) -> Iterator[list[Item]]:
    """What is sent: each round's words, calls and results at once; this model only answers, and sees no images."""
    number = 0
    items: list[Item] = []
    for each in rounds:
        items += [make_user_message(each.said)] if each.said else []
        items.append({"type": "message", "role": "assistant", "content": each.answer})
        calls = [call for call in each.calls if isinstance(call.result, str)]
        for place, call in enumerate(calls, number):
            called = {"name": call.name, "arguments": call.encoded_arguments}
            items.append({"type": "function_call", "call_id": f"call_{place}", **called})
        for place, call in enumerate(calls, number):
            items.append({"type": "function_call_output", "call_id": f"call_{place}", "output": call.result})
        number += len(calls)
        # Nothing is left to be answered behind words of the model's own.
        if calls:
            yield items
            items = []


def _read_usage(usage: dict[str, Any]) -> Usage:
    return Usage(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
