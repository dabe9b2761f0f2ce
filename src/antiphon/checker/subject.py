"""The server being checked, as the probes see it: ask, record a stream, retrieve, delete, restart.

It knows no requirement. Invariant: what the server refuses or breaks reaches a probe as a `Refusal` or as
`UndecidedError` with the server's own text, never as another exception.
"""

import asyncio
import copy
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from antiphon.checker.answers import (
    Answer,
    Item,
    Refusal,
    decode_json,
    read_event_error,
    read_refusal,
    read_response,
    tidy,
)
from antiphon.checker.recordings import Recording, decode_recording, read_type
from antiphon.checker.socket_line import FRAME_S, SOCKET_NEEDS, Patience, SocketLine
from antiphon.checker.undecided import UndecidedError
from antiphon.client import ClientError, ConnectionFailedError, Reply, Transport, UpgradeRefusedError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS, StreamChecker
from antiphon.protocol.sse import SseTooLargeError

#: Output budget of a probe's request: enough for a word after some reasoning.
OUTPUT_TOKENS = 200
#: Different faults of streams that a report lists, at most.
MAX_STREAM_FAULTS = 20
#: Rounds of the long chain unless told otherwise.
CHAIN_ROUNDS = 120
#: A history is grown to this many tokens, unless told otherwise, to find the end of the window.
WINDOW_TOKENS = 40_000
#: Until a server that was restarted must answer again.
RESTART_S = 60.0
#: Between two questions whether it does.
RESTART_POLL_S = 0.1

#: Answers to an upgrade that say that there is no WebSocket, or that do not see that one is asked for.
_NOT_OFFERED = (200, 204, 400, 404, 405, 406, 415, 422, 426, 501)

#: The smallest budget that the API allows, for requests whose answer does not matter.
_BRIEF = {"max_output_tokens": 16}

Found = TypeVar("Found")

_CONSONANTS, _VOWELS = "bdfgklmnprtvz", "aeiou"


class UnableError(UndecidedError):
    """The server says that it cannot, or that this key may not: no answer to what was asked."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the server answered {refusal}")
        self.refusal = refusal


class NoSocketError(UndecidedError):
    """The server has no WebSocket mode, and need not have one."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"not offered: the upgrade was answered {refusal}", SOCKET_NEEDS)
        self.refusal = refusal


class NoStreamError(UndecidedError):
    """A request with stream:true was answered without a stream."""


class Fetched(msgspec.Struct, frozen=True):
    """The answer to one HTTP request, whatever it is. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The decoded JSON; None where it is none."""
        return decode_json(self.raw)

    @property
    def object(self) -> dict[str, Any]:
        """The decoded JSON object; empty where it is none."""
        body = self.body
        return body if isinstance(body, dict) else {}

    @property
    def refusal(self) -> Refusal | None:
        """The refusal, where it is one."""
        return read_refusal(self.status, self.raw) if self.status >= 300 else None

    @property
    def is_stream(self) -> bool:
        """Whether its body is a stream of events."""
        return "text/event-stream" in self.headers.get("content-type", "")

    @property
    def recording(self) -> Recording:
        """Its events; raises `UndecidedError` where they cannot be read."""
        return _decode(self.raw)


class Tally(msgspec.Struct):
    """How often the model was asked and answered."""

    answers: int = 0


class Subject:
    """One server and model under check, with the randomness of this run."""

    def __init__(
        self,
        transport: Transport,
        model: str,
        *,
        prefix: str = "/v1",
        api_key: str | None = None,
        seed: int = 0,
        rounds: int = CHAIN_ROUNDS,
        window_tokens: int = WINDOW_TOKENS,
        timeout_s: float = math.inf,
        second_key: str | None = None,
        restart: Callable[[], Awaitable[None]] | None = None,
        mcp_url: str | None = None,
        frame_s: float = FRAME_S,
    ) -> None:
        self.model = model
        #: An MCP server that the server under check can reach.
        self.mcp_url = mcp_url
        self.rounds = rounds
        #: A history is grown no further than this.
        self.window_tokens = window_tokens
        #: What a probe may take in all; one that grows can stop before.
        self.timeout_s = timeout_s
        self.tally = Tally()
        #: Parameters that the server refuses and that are left out since, with its text.
        self.left_out: dict[str, str] = {}
        #: Whether the last answer was 401.
        self.was_denied = False
        #: What was wrong with the order of its streams, each fault once.
        self.stream_faults: list[str] = []
        self._transport = transport
        self._prefix = prefix
        self._api_key = api_key
        self._second_key = second_key
        self._restart = restart
        self._patience = Patience(frame_s)
        self._recordings: dict[str, Recording | UndecidedError] = {}
        self._tried: dict[str, Recording | Refusal | UndecidedError] = {}
        self._seed = seed
        self._random = random.Random(seed)

    def start_probe(self, requirement_id: str) -> None:
        """Seeds the words anew, so that a probe sends the same alone as among others."""
        self._random = random.Random(f"{self._seed} {requirement_id}")

    def make_word(self) -> str:
        """A fresh word that no model knows."""
        return "".join(self._random.choice(letters) for _ in range(4) for letters in (_CONSONANTS, _VOWELS))

    def make_id(self, prefix: str) -> str:
        """An id that no server gave out."""
        return f"{prefix}_{self._random.getrandbits(192):048x}"

    async def create(
        self, items: list[Item], *, previous: str | None = None, stream: bool = False, **fields: Any
    ) -> Answer | Refusal:
        """One request. A parameter of ours that the server refuses is left out from then on and noted."""
        body: dict[str, Any] = {
            "model": self.model,
            "input": items,
            "temperature": 0,
            "max_output_tokens": OUTPUT_TOKENS,
            **fields,
        }
        if previous is not None:
            body["previous_response_id"] = previous
        if stream:
            body["stream"] = True
        return await self._post_without_refused(body, self._post)

    async def ask(
        self, items: list[Item], *, previous: str | None = None, stream: bool = False, **fields: Any
    ) -> Answer:
        """A request that must be answered for the probe to go on."""
        answer = await self.create(items, previous=previous, stream=stream, **fields)
        if isinstance(answer, Refusal):
            raise UndecidedError(f"the server refused a request that the probe needs ({answer})")
        return answer

    async def send(self, **fields: Any) -> tuple[Answer | Refusal, Any]:
        """The answer to these fields, which may be wrong, and its decoded body.

        Every refusal is returned, a server's error as well. A small budget goes with them, because a server
        that sees nothing wrong answers, and a small model may never end.
        """
        body = self._leave_out({**_BRIEF, **fields})
        status, _, raw = await self._exchange("POST", "/responses", msgspec.json.encode(body))
        if status != 200:
            return read_refusal(status, raw), decode_json(raw)
        return _read_plain(status, raw), decode_json(raw)

    async def record(self, name: str, items: list[Item], **fields: Any) -> Recording:
        """The events of a streamed answer; asked for once in a run under each name.

        Raises `NoStreamError` where the answer is no stream.
        """
        if name not in self._recordings:
            try:
                self._recordings[name] = await self._record(items, fields)
            except UndecidedError as reason:
                self._recordings[name] = reason
        found = self._recordings[name]
        if isinstance(found, UndecidedError):
            raise found
        return found

    async def record_refusal(self, **fields: Any) -> Recording | Refusal:
        """What a streaming request that the server should refuse is answered with."""
        return await self._post_recorded(self._leave_out({**_BRIEF, **fields, "stream": True}))

    async def try_record(self, name: str, **fields: Any) -> Recording | Refusal:
        """The events of a streamed answer to these fields, or how they are refused; asked once under each name.

        A response that failed is a recording. Raises `NoStreamError` where the answer is no stream.
        """
        if name not in self._tried:
            body = {"model": self.model, "max_output_tokens": OUTPUT_TOKENS, **fields, "stream": True}
            try:
                self._tried[name] = await self._post_without_refused(body, self._post_recorded)
            except UndecidedError as reason:
                self._tried[name] = reason
        found = self._tried[name]
        if isinstance(found, UndecidedError):
            raise found
        return found

    def list_recordings(self) -> list[Recording]:
        """Every stream that was recorded so far."""
        found = [*self._recordings.values(), *self._tried.values()]
        return [one for one in found if isinstance(one, Recording)]

    def make_body(self, **fields: Any) -> dict[str, Any]:
        """A request whose answer does not matter: the model, a small budget, these fields."""
        return self._leave_out({"model": self.model, **_BRIEF, **fields})

    async def fetch(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Fetched:
        """One HTTP exchange under the API's prefix; bytes are sent as they are, everything else as JSON."""
        raw = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        return await self._fetch(method, self._prefix + path, raw, headers or {})

    async def fetch_root(self, method: str, path: str) -> Fetched:
        """One HTTP exchange outside the API's prefix."""
        return await self._fetch(method, self._prefix.removesuffix("/v1") + path, None, {})

    async def fetch_head(self, path: str, body: Any, events: int) -> Recording:
        """The first events of a stream, which is then left; raises `UndecidedError` where there is no stream."""
        headers = self._make_headers(has_body=True)
        try:
            reply = await self._send("POST", self._prefix + path, headers, msgspec.json.encode(body))
            try:
                raw = b""
                if reply.status == 200 and "text/event-stream" in reply.headers.get("content-type", ""):
                    async with aclosing(reply.chunks()) as chunks:
                        async for chunk in chunks:
                            raw += chunk
                            if raw.count(b"\n\n") >= events:
                                break
            finally:
                await reply.close()
        except (ConnectionFailedError, ClientError) as error:
            raise UndecidedError(f"POST {path}: {tidy(error)}") from error
        return _decode(raw)

    @asynccontextmanager
    async def open_socket(self) -> AsyncIterator[SocketLine]:
        """A WebSocket to the Responses route; raises `NoSocketError` where there is no such mode."""
        path = f"{self._prefix}/responses"
        headers = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            socket = await self._transport.open_socket(path, headers)
        except UpgradeRefusedError as answer:
            refusal = read_refusal(answer.status, answer.body)
            if answer.status in _NOT_OFFERED:
                raise NoSocketError(refusal) from answer
            raise UndecidedError(f"the upgrade to a WebSocket was answered {refusal}") from answer
        except (ConnectionFailedError, ClientError) as failure:
            raise UndecidedError(f"WebSocket {path}: {tidy(failure)}") from failure
        try:
            yield SocketLine(socket, self._make_socket_body, self._note_answer, self._patience)
        finally:
            # What breaks while it is closed says nothing more.
            with suppress(ConnectionFailedError):
                await socket.close()

    def _make_socket_body(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self._leave_out(
            {"model": self.model, "temperature": 0, "max_output_tokens": OUTPUT_TOKENS, **fields}
        )

    def _note_answer(self) -> None:
        self.tally.answers += 1

    @property
    def other(self) -> "Subject | None":
        """The same server as it is seen with the second key; None without one."""
        if self._second_key is None:
            return None
        other = copy.copy(self)
        other._api_key = self._second_key
        return other

    @property
    def can_restart(self) -> bool:
        """Whether the one who runs this check said how the server is restarted."""
        return self._restart is not None

    async def restart(self) -> None:
        """Has the server restarted, and waits until it answers again."""
        if self._restart is None:
            raise UndecidedError("nobody said how the server is restarted")
        await self._restart()
        last = ""
        try:
            async with asyncio.timeout(RESTART_S):
                while True:
                    try:
                        await self.list_models()
                    except UndecidedError as reason:
                        last = str(reason)
                        await asyncio.sleep(RESTART_POLL_S)
                    else:
                        return
        except TimeoutError:
            raise UndecidedError(
                f"the server did not answer {RESTART_S:g} s after its restart ({last})"
            ) from None

    async def retrieve(self, response_id: str) -> Answer | Refusal:
        """GET one response."""
        status, _, raw = await self._exchange("GET", f"/responses/{quote(response_id, safe='')}")
        return _read_plain(status, raw)

    async def delete(self, response_id: str) -> Refusal | None:
        """DELETE one response; None where the server says that it did."""
        status, _, raw = await self._exchange("DELETE", f"/responses/{quote(response_id, safe='')}")
        return None if 200 <= status < 300 else _read_outcome(status, raw)

    async def list_input_items(self, response_id: str) -> list[Any] | Refusal:
        """GET the input items of one response."""
        status, _, raw = await self._exchange(
            "GET", f"/responses/{quote(response_id, safe='')}/input_items?limit=100&order=asc"
        )
        if status != 200:
            return _read_outcome(status, raw)
        body = decode_json(raw)
        data = body.get("data") if isinstance(body, dict) else None
        if not isinstance(data, list):
            raise UndecidedError(f"the list of input items is none: {tidy(raw.decode(errors='replace'))}")
        return data

    async def list_models(self) -> list[str]:
        """The ids of the models that the server offers."""
        status, _, raw = await self._exchange("GET", "/models")
        if status != 200:
            raise UndecidedError(f"GET /models: {read_refusal(status, raw)}")
        body = decode_json(raw)
        data = body.get("data") if isinstance(body, dict) else None
        models = (
            [entry.get("id") for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
        )
        return [model for model in models if isinstance(model, str)]

    async def _post(self, body: dict[str, Any]) -> Answer | Refusal:
        status, media, raw = await self._exchange("POST", "/responses", msgspec.json.encode(body))
        if status == 200 and "text/event-stream" in media:
            return _read_stream(raw, self._note_fault)
        return _read_plain(status, raw)

    async def _post_recorded(self, body: dict[str, Any]) -> Recording | Refusal:
        status, media, raw = await self._exchange("POST", "/responses", msgspec.json.encode(body))
        if status != 200:
            return read_refusal(status, raw)
        if "text/event-stream" not in media:
            raise NoStreamError(f"stream:true was answered without a stream, as {tidy(media, 80)}")
        return _decode(raw)

    async def _record(self, items: list[Item], fields: dict[str, Any]) -> Recording:
        body = {
            "model": self.model,
            "input": items,
            "temperature": 0,
            "max_output_tokens": OUTPUT_TOKENS,
            **fields,
            "stream": True,
        }
        answer = await self._post_without_refused(body, self._post_recorded)
        if isinstance(answer, Refusal):
            raise UndecidedError(f"the server refused a stream that the probe needs ({answer})")
        return answer

    async def _post_without_refused(
        self, body: dict[str, Any], post: Callable[[dict[str, Any]], Awaitable[Found | Refusal]]
    ) -> Found | Refusal:
        """Posts until no parameter of ours is refused any more."""
        while True:
            sent = self._leave_out(body)
            answer = await post(sent)
            refused = _find_refused_option(answer, sent) if isinstance(answer, Refusal) else None
            if refused is None:
                return answer
            self.left_out[refused] = str(answer)

    def _leave_out(self, body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name not in self.left_out}

    def _note_fault(self, fault: str) -> None:
        told = tidy(fault)
        if told not in self.stream_faults and len(self.stream_faults) < MAX_STREAM_FAULTS:
            self.stream_faults.append(told)

    async def _exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str, bytes]:
        """One HTTP exchange: status, content type, the whole body."""
        found = await self._fetch(method, self._prefix + path, body, {})
        self.was_denied = found.status == 401
        return found.status, found.headers.get("content-type", ""), found.raw

    def _make_headers(self, *, has_body: bool) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream"}
        if has_body:
            headers["content-type"] = "application/json"
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        return headers

    async def _fetch(self, method: str, path: str, body: bytes | None, extra: dict[str, str]) -> Fetched:
        headers = {**self._make_headers(has_body=body is not None), **extra}
        try:
            reply = await self._send(method, path, headers, body)
            try:
                raw = await reply.read()
                if method == "POST" and reply.status == 200:
                    self.tally.answers += 1
                return Fetched(reply.status, dict(reply.headers), raw)
            finally:
                await reply.close()
        except (ConnectionFailedError, ClientError) as error:
            raise UndecidedError(f"{method} {path.partition('?')[0]}: {tidy(error)}") from error

    async def _send(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Reply:
        """Sent twice at most: a kept connection that the server has just closed says nothing about it."""
        try:
            return await self._transport.send(method, path, headers, body)
        except ConnectionFailedError:
            # A request that was cut off because its time is up is not sent again.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return await self._transport.send(method, path, headers, body)


def user(text: str) -> Item:
    """A user message."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _find_refused_option(refusal: Refusal, sent: dict[str, Any]) -> str | None:
    """Which of our optional parameters the refusal is about."""
    # A refusal for lack of room may name the output budget, too.
    if refusal.status not in (400, 422) or refusal.is_overflow:
        return None
    for name in ("temperature", "max_output_tokens"):
        if name in sent and (refusal.param == name or name in refusal.message):
            return name
    return None


def _read_plain(status: int, raw: bytes) -> Answer | Refusal:
    if status != 200:
        return _read_outcome(status, raw)
    response = read_response(decode_json(raw))
    if response is None:
        raise UndecidedError(
            f"the answer is no finished response object: {tidy(raw.decode(errors='replace'))}"
        )
    return response


def _read_outcome(status: int, raw: bytes) -> Refusal:
    refusal = read_refusal(status, raw)
    if status >= 300 and not refusal.is_clients_fault:
        raise UnableError(refusal)
    return refusal


def _read_stream(raw: bytes, note_fault: Callable[[str], None]) -> Answer | Refusal:
    """The terminal event's response; an `error` event tells more than the failed response after it."""
    told: Refusal | None = None
    ended: Answer | Refusal | None = None
    checker = StreamChecker()
    for event in _decode(raw).events:
        for fault in checker.feed(event):
            note_fault(fault)
        event_type = read_type(event)
        if event_type == "error":
            told = read_event_error(event)
        if event_type in TERMINAL_EVENTS:
            ended = read_response(event.get("response"))
            if ended is None:
                raise UndecidedError("the terminal event carries no response object")
    for fault in checker.end():
        note_fault(fault)
    if isinstance(ended, Answer):
        return ended
    refusal = told or ended
    if refusal is None:
        raise UndecidedError("the stream ended without a terminal event")
    return refusal


def _decode(raw: bytes) -> Recording:
    try:
        return decode_recording(raw)
    except SseTooLargeError as error:
        raise UndecidedError(tidy(error)) from error
