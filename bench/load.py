"""The client: sends the requests of one job and says how long each took. Runs in a process of its own.

Jobs come as JSON lines on standard input, results leave as JSON lines on standard output. The code is the
same for both sides; only the address, the path and the body differ. Bodies are encoded by the standard
library's `json`, as the SDKs do. Invariant: an answer that is not whole and right ends the job with an error.
"""

import asyncio
import json
import random
import sys
import time
from typing import Any, TypeAlias, cast

import httptools
import uvloop
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import WebSocketException

from bench.fake_upstream import SHAPES, make_text

Job: TypeAlias = dict[str, Any]

#: No answer may take longer.
ANSWER_TIMEOUT_S = 30.0
#: The length of every user message of a chain.
MESSAGE_BYTES = 320


class WrongAnswerError(Exception):
    """The server answered something else than asked for."""


class Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.body: list[bytes] = []
        self.reads = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        # uvloop's transports are of no common class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self.reads += 1
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(
                WrongAnswerError("the connection was closed before the answer's end")
            )

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.body.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self.status = self._parser.get_status_code()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def ask(self, head: bytes, body: bytes) -> bytes:
        """The body of the answer to one request; raises `WrongAnswerError` for any status but 200."""
        if self._transport is None:
            raise WrongAnswerError("not connected")
        self.body.clear()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.writelines((head % len(body), body))
        await self._answered
        answer = b"".join(self.body)
        if self.status != 200:
            raise WrongAnswerError(f"status {self.status}: {answer[:300].decode('utf-8', 'replace')}")
        return answer

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


def make_head(path: str, port: int) -> bytes:
    """The head of every request, its length to be filled in."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        "accept: */*\r\ncontent-length: %d\r\n\r\n"
    ).encode()


async def connect(port: int) -> Connection:
    """A connection to a loopback port."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    return connection


async def repeat(job: Job) -> Job:
    """One body `count` times over `concurrency` connections; latencies are from before encoding to the end."""
    head = make_head(job["path"], job["port"])
    connections = [await connect(job["port"]) for _ in range(job["concurrency"])]
    latencies: list[float] = []
    left = job["count"]

    async def work(connection: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            start = time.perf_counter()
            answer = await connection.ask(head, json.dumps(job["body"]).encode())
            latencies.append(time.perf_counter() - start)
            check_answer(answer, job)

    start = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in connections))
    elapsed = time.perf_counter() - start
    reads = sum(connection.reads for connection in connections)
    for connection in connections:
        connection.close()
    return {"latencies_s": latencies, "elapsed_s": elapsed, "reads": reads}


def check_answer(answer: bytes, job: Job) -> None:
    """A stream holds so many deltas and its end; a JSON answer holds the mark of a whole one."""
    mark = job["mark"].encode()
    if answer.count(mark) != job["marks"]:
        raise WrongAnswerError(f"{answer.count(mark)} times {job['mark']!r}, not {job['marks']}")
    if job["body"].get("stream") and not answer.rstrip().endswith(b"data: [DONE]"):
        raise WrongAnswerError("the stream has no end")


def make_user_text(round_number: int) -> str:
    """What the user says in a round: random words, the same in every run."""
    return make_text(MESSAGE_BYTES, random.Random(round_number))


def make_history(rounds: int) -> list[dict[str, str]]:
    """The messages of the first rounds, for a client that has to send them itself."""
    shape = SHAPES["bench"]
    random_ = random.Random(-1)
    history: list[dict[str, str]] = []
    for number in range(rounds):
        history.append({"role": "user", "content": make_user_text(number)})
        history.append({"role": "assistant", "content": make_text(shape.pieces * shape.piece_bytes, random_)})
    return history


async def chain_by_id(job: Job) -> Job:
    """Rounds `first`..`last` of a chain, each sending its new message and the id of the one before."""
    head = make_head(job["path"], job["port"])
    connection = await connect(job["port"])
    texts = [make_user_text(number) for number in range(job["first"], job["last"])]
    parent: str | None = job["parent"]
    text_bytes = 0
    start = time.perf_counter()
    for text in texts:
        body: Job = {"model": job["model"], "input": [{"role": "user", "content": text}]}
        if parent is not None:
            body["previous_response_id"] = parent
        answer = json.loads(await connection.ask(head, json.dumps(body).encode()))
        parent = answer["id"]
        text_bytes += len(text) + len(answer["output"][0]["content"][0]["text"])
        if answer["status"] != "completed":
            raise WrongAnswerError(f"status {answer['status']}")
    elapsed = time.perf_counter() - start
    connection.close()
    return {
        "elapsed_s": elapsed,
        "parent": parent,
        "text_bytes": text_bytes,
        "input_tokens": answer["usage"]["input_tokens"],
    }


async def chain_with_history(job: Job) -> Job:
    """The same rounds sent as a stateless client must: the whole history every time."""
    head = make_head(job["path"], job["port"])
    connection = await connect(job["port"])
    texts = [make_user_text(number) for number in range(job["first"], job["last"])]
    messages = make_history(job["first"])
    size = 0
    start = time.perf_counter()
    for text in texts:
        messages.append({"role": "user", "content": text})
        data = json.dumps({"model": job["model"], "messages": messages}).encode()
        size = len(data)
        answer = json.loads(await connection.ask(head, data))
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        if answer["choices"][0]["finish_reason"] != "stop":
            raise WrongAnswerError("an answer without its end")
    elapsed = time.perf_counter() - start
    connection.close()
    return {"elapsed_s": elapsed, "body_bytes": size, "input_tokens": answer["usage"]["prompt_tokens"]}


async def repeat_over_socket(job: Job) -> Job:
    """One body `count` times over one WebSocket, each as the continuation of the one before; every event is read."""
    parent: str | None = None
    latencies: list[float] = []
    async with connect_socket(f"ws://127.0.0.1:{job['port']}{job['path']}", compression=None) as socket:
        for _ in range(job["count"]):
            body: Job = {"type": "response.create", **job["body"]}
            if parent is not None:
                body["previous_response_id"] = parent
            start = time.perf_counter()
            await socket.send(json.dumps(body))
            marks = 0
            while True:
                message = str(await socket.recv())
                marks += job["mark"] in message
                if message.startswith(_SOCKET_ENDS):
                    break
            latencies.append(time.perf_counter() - start)
            end = json.loads(message)
            if end["type"] != "response.completed" or marks != job["marks"]:
                raise WrongAnswerError(f"{marks} times {job['mark']!r}, then {message[:300]}")
            parent = end["response"]["id"] if job["chains"] else None
    return {"latencies_s": latencies}


#: What a WebSocket's answer to one request ends with.
_SOCKET_ENDS = tuple(
    f'{{"type":"{name}"' for name in ("response.completed", "response.failed", "response.incomplete", "error")
)
_KINDS = {
    "repeat": repeat,
    "repeat_over_socket": repeat_over_socket,
    "chain_by_id": chain_by_id,
    "chain_with_history": chain_with_history,
}


async def run_job(job: Job) -> Job:
    """The result of one job, or `{"error": text}`."""
    try:
        async with asyncio.timeout(job["timeout_s"]):
            return await _KINDS[job["kind"]](job)
    except TimeoutError:
        return {"error": f"not done within {job['timeout_s']} s"}
    except (WrongAnswerError, OSError, httptools.HttpParserError, WebSocketException, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Jobs in, results out, until the input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(run_job(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
