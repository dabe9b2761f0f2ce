"""A model server that answers at once: Chat Completions and a model list, from prepared bytes.

It reads no JSON, so that it is never what is measured: the model's name, near the head of a body, picks
the shape of the answer; `"stream":true` decides how it is sent. Streamed pieces leave one write each.
Text inside a JSON string has its quotes escaped, so it is never taken for one of these members.
"""

import asyncio
import json
import random
import re
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

#: How far into a body the model's name is looked for, and how far from its end `stream`.
HEAD_BYTES = 256
TAIL_BYTES = 1024
#: Different answers of each shape, sent in turn, so that no store or cache sees one text for ever.
VARIANTS = 64
MAX_HEADER_BYTES = 64 << 10


@dataclass(frozen=True)
class Shape:
    """How an answer is cut: so many pieces of so many bytes, each so long after the one before."""

    pieces: int
    piece_bytes: int
    pace_s: float = 0.0


#: The models of this server. An answer of `bench` comes at once and is as long as a message of the chains.
#: The pieces of the others are spaced: 10 us is about as fast as a server of one stream can write them, and
#: several may meet in one read of a slower reader; after 50 us each arrives alone, as a real model's do.
SHAPES = {
    "bench": Shape(8, 40),
    "bench-200": Shape(200, 5, pace_s=10e-6),
    "bench-200-apart": Shape(200, 5, pace_s=50e-6),
}

_MODEL = re.compile(rb'"model": ?"([^"]+)"')
_STREAM = re.compile(rb'"stream": ?true')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def make_text(size: int, random_: random.Random) -> str:
    """Lower-case words, exactly `size` bytes, ending in a letter."""
    words: list[str] = []
    length = -1
    while length < size:
        word = "".join(random_.choices("abcdefghijklmnopqrstuvwxyz", k=random_.randint(2, 9)))
        words.append(word)
        length += len(word) + 1
    text = " ".join(words)[:size]
    return text[:-1] + "x"


class Answer:
    """One prepared answer; what depends on the request is its token counts alone."""

    def __init__(self, model: str, shape: Shape, random_: random.Random) -> None:
        text = make_text(shape.pieces * shape.piece_bytes, random_)
        cuts = range(0, len(text), shape.piece_bytes)
        self.output_tokens = shape.pieces
        self.pace_s = shape.pace_s
        self.deltas = [
            _frame(_make_delta(model, {"content": text[at : at + shape.piece_bytes]})) for at in cuts
        ]
        self.head = _STREAM_HEAD + _frame(_make_delta(model, {"role": "assistant", "content": ""}))
        self.finish = _frame(_make_delta(model, {}, finish_reason="stop"))
        self.whole = json.dumps(
            {
                "id": "chatcmpl-bench",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": model,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text},
                        "finish_reason": "stop",
                    }
                ],
            }
        ).encode()[:-1]
        self.usage_chunk = json.dumps(
            {
                "id": "chatcmpl-bench",
                "object": "chat.completion.chunk",
                "created": 1_700_000_000,
                "model": model,
                "choices": [],
            }
        ).encode()[:-1]

    def end(self, prompt_tokens: int) -> bytes:
        """The last bytes of a stream."""
        usage = b"data: %b,%b\n\n" % (self.usage_chunk, self._usage(prompt_tokens))
        return self.finish + _frame(usage) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def complete(self, prompt_tokens: int) -> bytes:
        """The answer in one piece, head included."""
        body = b"%b,%b" % (self.whole, self._usage(prompt_tokens))
        return _JSON_HEAD % len(body) + body

    def _usage(self, prompt_tokens: int) -> bytes:
        counts = (prompt_tokens, self.output_tokens, prompt_tokens + self.output_tokens)
        return b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}' % counts


_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _make_delta(model: str, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def prepare_answers() -> dict[bytes, Sequence[Answer]]:
    """All answers, by model name; the same in every run."""
    random_ = random.Random(2)
    return {
        name.encode(): [Answer(name, shape, random_) for _ in range(VARIANTS)]
        for name, shape in SHAPES.items()
    }


def make_model_list() -> bytes:
    """The whole answer to `GET /v1/models`."""
    rows = [{"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "bench"} for name in SHAPES]
    body = json.dumps({"object": "list", "data": rows}).encode()
    return _JSON_HEAD % len(body) + body


class FakeModelServer(asyncio.Protocol):
    """One connection. Requests come one after the other, each with a content length."""

    def __init__(self, answers: dict[bytes, Sequence[Answer]], model_list: bytes) -> None:
        self._answers = answers
        self._model_list = model_list
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._header = b""
        self._first = b""
        self._tail = b""
        self._length = 0
        self._missing = 0
        self._turn = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        # uvloop's transports are of no common class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if not self._missing:
            data = self._header + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._header = data
                if len(data) > MAX_HEADER_BYTES:
                    self._close()
                return
            self._header = b""
            if data.startswith(b"GET"):
                self._answer_get(data[:end])
                return
            length = _LENGTH.search(data, 0, end + 2)
            if length is None:
                self._close()
                return
            self._missing = self._length = int(length[1])
            data = data[end + 4 :]
            self._first = self._tail = b""
        if len(self._first) < HEAD_BYTES:
            self._first += data[:HEAD_BYTES]
        self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        self._missing -= len(data)
        if self._missing <= 0:
            self._missing = 0
            self._answer_post()

    def _answer_get(self, head: bytes) -> None:
        if head.startswith(b"GET /v1/models "):
            self._write(self._model_list)
        else:
            self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _answer_post(self) -> None:
        model = _MODEL.search(self._first)
        answers = self._answers.get(model[1]) if model is not None else None
        if answers is None:
            self._write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        self._turn += 1
        answer = answers[self._turn % VARIANTS]
        prompt_tokens = self._length // 4
        if _STREAM.search(self._tail) is None:
            self._write(answer.complete(prompt_tokens))
            return
        self._write(answer.head)
        self._loop.call_soon(self._send_piece, answer, 0, prompt_tokens, time.perf_counter())

    def _send_piece(self, answer: Answer, at: int, prompt_tokens: int, due_s: float) -> None:
        # One a loop pass: uvloop gathers what is written within one pass into one system call.
        if self._transport is None:
            return
        if answer.pace_s:
            # The loop's timers count in milliseconds, so short waits are spun.
            if time.perf_counter() < due_s:
                self._loop.call_soon(self._send_piece, answer, at, prompt_tokens, due_s)
                return
            due_s += answer.pace_s
        if at == len(answer.deltas):
            self._write(answer.end(prompt_tokens))
            return
        self._write(answer.deltas[at])
        self._loop.call_soon(self._send_piece, answer, at + 1, prompt_tokens, due_s)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def serve() -> None:
    """Listen on a free port, print it, and answer until a signal comes."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    answers, model_list = prepare_answers(), make_model_list()
    server = await loop.create_server(
        lambda: FakeModelServer(answers, model_list), "127.0.0.1", 0, family=socket.AF_INET
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
