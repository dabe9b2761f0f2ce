"""Token counts: exact where the backend counts, else our own tokenizer's, calibrated by what backends report.

Tokenizing happens on one thread beside the event loop and in bounded time; a sample for the calibration is only kept
when a response ends, and worked out when an estimate is asked for. It knows no requests. Invariants: whoever is told a
count is told whether it is exact; and what one tenant's prompts were counted as says nothing to another.
"""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from antiphon.backends import Ask, Backend
from antiphon.context.counts import (
    CHARS_PER_TOKEN,
    MESSAGE_TOKENS,
    Calibration,
    Sample,
    Size,
    add_sizes,
    calibrate,
    count_texts,
    measure_texts,
    read_piece,
)
from antiphon.context.image_costs import Billing, find_billing
from antiphon.context.truncation import ESTIMATE_MARGIN_SHARE
from antiphon.engine.tokenizers import Tokenizer, load_tokenizer
from antiphon.protocol.errors import BackendError, ContextOverflowError
from antiphon.protocol.tools import FunctionTool

#: One estimate tokenizes for about this long at most; what is left then is guessed.
COUNT_TIME_S: Final = 1.0
#: Estimates that wait for the one thread; one more is guessed from its length.
WAITING_LIMIT: Final = 32
#: Counts of pieces that are remembered: a path's pieces are the same in each of its rounds.
PIECES_REMEMBERED: Final = 32_768
#: Tenants, and models of each, whose reported counts are kept.
TENANTS_KEPT: Final = 128
MODELS_KEPT: Final = 16
#: Per model: prompts that are not worked out yet, and samples that are.
PENDING_KEPT: Final = 4
SAMPLES_KEPT: Final = 8
#: Longer prompts are no samples: they would hold memory for what shorter ones tell too.
SAMPLE_MAX_BYTES: Final = 512 << 10
SAMPLE_MAX_PIECES: Final = 2_048
#: Bytes of prompts that one tenant's samples wait with, all models together.
PENDING_MAX_BYTES: Final = 1 << 20
#: After its first samples, one of this many rounds of a model is another.
SAMPLE_EVERY: Final = 16
#: Before anything was reported, an estimate may be off by this much, and by more in some scripts.
FIRST_ERROR_SHARE: Final = 0.3
#: A count of the backend's own is waited for this long.
BACKEND_COUNT_TIMEOUT_S: Final = 10.0

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


class TargetKey(NamedTuple):
    """Whose counts belong together: one model behind one endpoint."""

    endpoint: str
    model: str


class Count(msgspec.Struct, frozen=True):
    """The tokens of a prompt, and whether its own backend counted them."""

    tokens: int
    exact: bool


class Measured(msgspec.Struct, frozen=True):
    """The sizes of some pieces of a prompt, and how a model's counts come from sizes."""

    sizes: list[Size]
    calibration: Calibration


class _Reported(NamedTuple):
    """A prompt and its reported count; no sample if we count more than `limit_tokens`."""

    prompt: Sequence[bytes]
    size: int
    tokens: int
    limit_tokens: float


class _Model:
    """What one model has reported."""

    __slots__ = ("largest", "notes", "pending", "samples")

    def __init__(self) -> None:
        self.notes = 0
        self.largest = 0
        self.pending: deque[_Reported] = deque(maxlen=PENDING_KEPT)
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)


def make_target_key(backend: Backend, model: str) -> TargetKey:
    """The key of a model behind a backend."""
    return TargetKey(backend.name, model)


def list_prompt(ask: Ask) -> list[bytes]:
    """All that a backend is asked, as pieces to be counted: tools, system text, transcript."""
    prompt = [*list_frame(ask), *ask.transcript]
    return [piece for piece in prompt if piece]


def list_frame(ask: Ask) -> list[bytes]:
    """What stands around the transcript: tools, then system text; nothing for what there is not."""
    return [piece for piece in (encode_tools(ask), encode_system(read_system(ask))) if piece]


def encode_tools(ask: Ask) -> bytes:
    """The tools as templates show them to a model: their JSON, a text; empty when there are none."""
    if ask.tool_choice == "none":
        return b""
    if ask.tools:
        return _encode([_describe(tool) for tool in ask.tools])
    if ask.request is not None and ask.request.tools:
        return _encode(ask.request.tools)
    return b""


def _describe(tool: FunctionTool) -> dict[str, Any]:
    told = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters or {}}
    return {"type": "function", "function": told}


def read_system(ask: Ask) -> str:
    """The system text; a backend that speaks Responses is given the instructions beside it."""
    if ask.system or ask.request is None:
        return ask.system
    return ask.request.instructions or ""


def encode_system(text: str) -> bytes:
    """A system text as a message, so that it is counted like one; empty when there is none."""
    return _encode({"role": "system", "content": text}) if text else b""


class TokenCounter:
    """Estimates of token counts, for all models of one tenant. Close it when the server ends.

    What was reported is the tenant's own; the thread, and the sizes of pieces, are shared by all `of_tenant`.
    """

    def __init__(
        self, load: Callable[[], Tokenizer] = load_tokenizer, *, bench: "_Workbench | None" = None
    ) -> None:
        self._bench = bench or _Workbench(load)
        self._models: OrderedDict[TargetKey, _Model] = OrderedDict()
        self._tenants: OrderedDict[str, TokenCounter] = OrderedDict()

    def of_tenant(self, tenant: str) -> "TokenCounter":
        """The counter of one tenant, which no other tenant's prompts change."""
        counter = self._tenants.get(tenant)
        if counter is None:
            counter = self._tenants[tenant] = TokenCounter(bench=self._bench)
            while len(self._tenants) > TENANTS_KEPT:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return counter

    # Samples: on the path of every response

    def wants_sample(self, key: TargetKey, tokens: int) -> bool:
        """Whether this response would be a sample: so that nobody gathers its prompt for nothing."""
        model = self._models.get(key)
        if model is None:
            return True
        model.notes += 1
        return model.notes <= SAMPLES_KEPT or tokens > 2 * model.largest or model.notes % SAMPLE_EVERY == 0

    def note(
        self, key: TargetKey, prompt: Sequence[bytes], tokens: int, *, limit_tokens: float = math.inf
    ) -> None:
        """A backend reported how many tokens a prompt has; the prompt is referred to, not read.

        A prompt that we count above `limit_tokens` may have been cut before it was counted, and says nothing.
        """
        size = sum(map(len, prompt))
        if tokens <= 0 or len(prompt) > SAMPLE_MAX_PIECES or size > SAMPLE_MAX_BYTES:
            return
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = _Model()
            while len(self._models) > MODELS_KEPT:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        model.largest = max(model.largest, tokens)
        self._make_room(size)
        model.pending.append(_Reported(prompt, size, tokens, limit_tokens))

    def _make_room(self, size: int) -> None:
        """Let go of waiting prompts, those of the least recently used models first, until there is room for one."""
        for model in self._models.values():
            held = sum(each.size for other in self._models.values() for each in tuple(other.pending))
            if held + size <= PENDING_MAX_BYTES:
                return
            model.pending.clear()

    def note_ask(self, key: TargetKey, ask: Ask, tokens: int) -> None:
        """`note` for the prompt of an ask, if it is wanted."""
        if not self.wants_sample(key, tokens):
            return
        window = ask.profile.window_tokens if ask.profile.truncates_silently else None
        limit = window / (1 + FIRST_ERROR_SHARE) if window is not None else math.inf
        self.note(key, list_prompt(ask), tokens, limit_tokens=limit)

    def forget(self) -> None:
        """Let go of every prompt that is not worked out yet: something of one of them was deleted."""
        for model in self._models.values():
            model.pending.clear()
        for counter in self._tenants.values():
            counter.forget()

    # Estimates

    def get_error_share(self, key: TargetKey) -> float:
        """By how much the last estimates for a model may have been wrong, as a share of them."""
        model = self._models.get(key)
        return ESTIMATE_MARGIN_SHARE if model is not None and model.samples else FIRST_ERROR_SHARE

    async def estimate(self, key: TargetKey, prompt: Sequence[bytes]) -> int:
        """The tokens of a whole prompt, as the model's backend would count them, about."""
        measured = await self.measure(key, prompt)
        return measured.calibration.apply(add_sizes(measured.sizes))

    async def estimate_many(self, key: TargetKey, texts: Sequence[bytes]) -> list[int]:
        """The tokens of each of some parts of a prompt."""
        measured = await self.measure(key, texts)
        return [measured.calibration.scale(size) for size in measured.sizes]

    async def measure(self, key: TargetKey, pieces: Sequence[bytes]) -> Measured:
        """The size of each piece, and the model's calibration."""
        if self._bench.waiting >= WAITING_LIMIT:
            return Measured([Size(len(piece) // CHARS_PER_TOKEN) for piece in pieces], Calibration())
        return await self._bench.run(lambda: self._measure(key, pieces))

    def close(self) -> None:
        """End the thread, when it has done what it is at."""
        self._bench.close()

    # On the thread

    def _measure(self, key: TargetKey, pieces: Sequence[bytes]) -> Measured:
        deadline = time.monotonic() + COUNT_TIME_S

        def is_late() -> bool:
            return time.monotonic() > deadline

        billing = find_billing(key.model)
        sizes = self._bench.count_pieces(pieces, billing, is_late)
        model = self._models.get(key)
        if model is None:
            return Measured(sizes, Calibration())
        while model.pending and not is_late():
            self._work_out(model, billing, is_late)
        return Measured(sizes, calibrate(list(model.samples)))

    def _work_out(self, model: _Model, billing: Billing, is_late: Callable[[], bool]) -> None:
        try:
            reported = model.pending.popleft()
        except IndexError:
            # It was let go of meanwhile.
            return
        size = add_sizes(self._bench.count_pieces(reported.prompt, billing, is_late))
        # What an image costs is a guess of its own, which must not spoil the rates.
        if not is_late() and not size.fixed_tokens and size.tokens <= reported.limit_tokens:
            model.samples.append(Sample(size, reported.tokens))


class _Workbench:
    """The one thread that counts, its tokenizer, and the sizes of pieces that it has counted."""

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        self._load = load
        self._tokenizer: Tokenizer | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-count")
        self._pieces: OrderedDict[bytes, Size] = OrderedDict()
        self.waiting = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do it on the thread, when its turn has come."""
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """End the thread, when it has done what it is at."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # On the thread

    def count_pieces(
        self, pieces: Sequence[bytes], billing: Billing, is_late: Callable[[], bool]
    ) -> list[Size]:
        """The size of each piece; what was counted before is not counted again."""
        # An image costs what the model's family bills for it, so the family is part of a piece's name.
        family = hashlib.blake2b(_encode(billing), digest_size=16).digest()
        names = [hashlib.blake2b(piece, digest_size=16, key=family).digest() for piece in pieces]
        found = {name: self._pieces[name] for name in names if name in self._pieces}
        for name in found:
            self._pieces.move_to_end(name)
        new = {name: piece for name, piece in zip(names, pieces, strict=True) if name not in found}
        found |= self._count_new(new, billing, is_late)
        return [found[name] for name in names]

    def _count_new(
        self, pieces: dict[bytes, bytes], billing: Billing, is_late: Callable[[], bool]
    ) -> dict[bytes, Size]:
        if not pieces:
            return {}
        if self._tokenizer is None:
            self._tokenizer = self._load()
        readings = [read_piece(piece, billing) for piece in pieces.values()]
        texts = [text for reading in readings for text in reading.texts]
        counts, whole = count_texts(
            texts, self._tokenizer.count, limit_chars=self._tokenizer.limit_chars, is_late=is_late
        )
        rest = iter(counts)
        found: dict[bytes, Size] = {}
        for name, reading in zip(pieces, readings, strict=True):
            tokens = sum(next(rest) for _ in reading.texts)
            size = measure_texts(reading.texts, tokens + MESSAGE_TOKENS * reading.messages)
            found[name] = size._replace(fixed_tokens=reading.image_tokens)
        if whole:
            self._pieces.update(found)
            while len(self._pieces) > PIECES_REMEMBERED:
                self._pieces.popitem(last=False)
        return found


async def count_exactly(ask: Ask, backend: Backend) -> int | None:
    """The backend's own count of a prompt; None where it has none or does not tell it now."""
    try:
        async with asyncio.timeout(BACKEND_COUNT_TIMEOUT_S):
            return await backend.count_tokens(ask)
    except ContextOverflowError as error:
        return None if error.at_least else error.prompt_tokens
    except (BackendError, TimeoutError):
        return None


async def count_input(ask: Ask, backend: Backend, counter: TokenCounter, key: TargetKey) -> Count:
    """How many tokens a prompt has: the backend's count where it tells one, else our estimate."""
    tokens = await count_exactly(ask, backend)
    if tokens is not None:
        return Count(tokens, exact=True)
    return Count(await counter.estimate(key, list_prompt(ask)), exact=False)
