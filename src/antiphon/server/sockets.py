"""WebSocket mode of `/v1/responses`: connections, their lanes, and what ends them.

It knows the engine and ASGI, and no WebSocket library. Invariant: every frame that asks for a response gets a
terminal event or one error frame, in the order of its lane, unless the client has left; and no wait for a client
that does not read is longer than `write_timeout_s`.
"""

import asyncio
import logging
from collections import deque
from typing import Any

from antiphon.engine import Connection, Engine, Round
from antiphon.protocol.errors import (
    AntiphonError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    RequestError,
    ServerStoppingError,
    UpgradeRequiredError,
)
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.socket_frames import (
    CREATE,
    ClientFrame,
    FrameError,
    encode_error_frame,
    encode_steer_refusal,
    read_frame,
    read_parent,
    read_socket_request,
)
from antiphon.server.admission import Admission, Lease
from antiphon.server.bodies import LARGE_BODY_BYTES, check_input_length
from antiphon.server.headers import read_headers
from antiphon.server.keys import Access, Keyring
from antiphon.server.log_format import describe_error
from antiphon.server.replies import ANSWER_HEADERS, INTERNAL_ERROR, make_request_id, send_error
from antiphon.server.route import RESPONSES_PATH
from antiphon.server.settings import ServerLimits
from antiphon.server.socket_lane import LaneSender

_log = logging.getLogger("antiphon.server")

NORMAL_CLOSURE = 1000
POLICY_VIOLATION = 1008
SERVICE_RESTART = 1012
#: A lane whose client has left, or whose server stops, is given this long for its last words.
LAST_WORDS_S = 10.0
#: A client whose frame is refused for the number of those that wait is told to come back after this long.
RETRY_AFTER_S = 1
#: So many refusals may wait for their turn in their lanes; a client that goes on sending is not listening.
REFUSED_LIMIT = 1_024


class Sockets:
    """All WebSocket connections of one server."""

    def __init__(self, engine: Engine, keys: Keyring, limits: ServerLimits, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._keys = keys
        self._limits = limits
        self._sessions: set[SocketSession] = set()
        self._is_stopping = False

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        """One connection, from its upgrade to its end."""
        request_id = make_request_id()
        await receive()
        try:
            access = self._admit(scope)
        except AntiphonError as error:
            await _refuse_upgrade(scope, send, request_id, error)
            return
        await send({"type": "websocket.accept", "headers": [(b"x-request-id", request_id), *ANSWER_HEADERS]})
        session = SocketSession(self._engine, access, self._limits, self._admission, receive, send)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    def _admit(self, scope: Any) -> Access:
        headers = read_headers(scope["headers"])
        if scope["path"] != RESPONSES_PATH:
            raise NotFoundError(
                f"Unknown request URL: WebSocket {scope['path']}. WebSocket is served at {RESPONSES_PATH}.",
                code="unknown_url",
            )
        if not self._limits.websocket:
            raise UpgradeRequiredError
        access = self._keys.find_access(headers)
        if self._is_stopping:
            raise ServerStoppingError
        if len(self._sessions) >= self._limits.websocket_connections:
            raise OverloadedError(
                f"Too many WebSocket connections are open (limits.websocket_connections = "
                f"{self._limits.websocket_connections}); close one, or try again later.",
                headers={"retry-after": "5"},
            )
        return access

    def stop(self) -> None:
        """The server stops: what runs may end, nothing more begins, and each connection is closed when it is idle."""
        self._is_stopping = True
        for session in list(self._sessions):
            session.stop()


class _Lane:
    """The requests of one `stream_id`, in their order."""

    __slots__ = ("name", "task", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        #: Frames with their sizes, and errors that are the answers to frames which were refused when they came.
        self.waiting: deque[tuple[ClientFrame, int] | AntiphonError] = deque()
        self.task: asyncio.Task[None] | None = None


class SocketSession:
    """One connection: reads frames, gives them to lanes, and sends what these answer."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        limits: ServerLimits,
        admission: Admission,
        receive: Any,
        send: Any,
    ) -> None:
        self._admission = admission
        self._connection: Connection = engine.connect(access.tenant, zero_retention=access.zero_retention)
        self._access = access
        self._limits = limits
        self._receive = receive
        self._send = send
        self._lanes: dict[str | None, _Lane] = {}
        self._running = asyncio.Semaphore(limits.websocket_running)
        self._waiting = 0
        self._waiting_bytes = 0
        self._refused = 0
        self._reader: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._has_left = False
        self._is_stopping = False
        self._has_expired = False
        self._is_ending = False
        self._is_closed = False

    async def run(self) -> None:
        """Until the client leaves, the connection is old, or the server stops."""
        expiry = asyncio.get_running_loop().call_later(self._limits.websocket_s, self._expire)
        self._reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({self._reader})
            self._has_left = True
        except asyncio.CancelledError:
            # The server does not wait any longer: each client gets the end of what runs.
            await self._end_lanes()
            await self._close(SERVICE_RESTART)
            raise
        finally:
            expiry.cancel()
            self._reader.cancel()
            await self._end_lanes()
            if self._closer is not None:
                await asyncio.wait({self._closer}, timeout=LAST_WORDS_S)
            self._connection.close()

    async def _read(self) -> None:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                if message["type"] == "websocket.receive":
                    await self._take(message)
        except OSError:
            return
        except Exception:  # noqa: BLE001 - a connection is a request: one of the three places that catch broadly
            _log.exception("a WebSocket connection broke by a fault of our own")

    async def _take(self, message: Any) -> None:
        if self._is_closed:
            # It was sent before our close arrived.
            return
        text = message.get("text")
        if text is None:
            error = RequestError(
                "Binary messages are not read here; send JSON as text.", code="invalid_value"
            )
            await self.send_error(error, None)
            return
        try:
            data = text.encode()
            if len(data) < LARGE_BODY_BYTES:
                frame = read_frame(data)
            else:
                frame = await asyncio.to_thread(read_frame, data)
        except FrameError as failure:
            await self._refuse(failure.error, failure.lane, has_lane=failure.has_lane)
            return
        try:
            if frame.type == CREATE:
                self._enqueue(frame, len(data))
            else:
                await self._send_bounded(encode_steer_refusal(frame))
        except AntiphonError as error:
            await self._refuse(error, frame.lane, has_lane=True)

    async def _refuse(self, error: AntiphonError, name: str | None, *, has_lane: bool) -> None:
        """Answer by an error when it is the frame's turn: the n-th answer of a lane is that to its n-th frame."""
        lane = self._lanes.get(name) if has_lane else None
        if lane is None or lane.task is None:
            await self.send_error(error, name)
            return
        lane.waiting.append(error)
        self._refused += 1
        if self._refused > REFUSED_LIMIT:
            await self._close(POLICY_VIOLATION)

    def _enqueue(self, frame: ClientFrame, size: int) -> None:
        self._refuse_when_closing()
        self._check_room(size)
        lane = self._lanes.get(frame.lane)
        if lane is None:
            lane = self._open_lane(frame.lane)
        lane.waiting.append((frame, size))
        self._waiting += 1
        self._waiting_bytes += size
        if lane.task is None:
            lane.task = asyncio.create_task(self._work(lane))

    def _check_room(self, size: int) -> None:
        limits = self._limits
        if (
            self._waiting >= limits.websocket_waiting
            or self._waiting_bytes + size > limits.body_decompressed_bytes
        ):
            raise RateLimitError(
                f"Too many requests wait on this connection: {limits.websocket_waiting} may, and together "
                f"{limits.body_decompressed_bytes} bytes. Wait for a response to end.",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )

    def _open_lane(self, name: str | None) -> _Lane:
        limit = self._limits.websocket_lanes
        named = len(self._lanes) - (None in self._lanes)
        if name is not None and named >= limit:
            raise RequestError(
                f"Too many streams on this connection: it may have {limit}. Use one of the 'stream_id's that there "
                "are, or open another connection.",
                param="stream_id",
                code="websocket_stream_limit_reached",
            )
        lane = self._lanes[name] = _Lane(name)
        return lane

    def _refuse_when_closing(self) -> None:
        if self._is_stopping:
            raise ServerStoppingError
        if self._has_expired:
            raise self._make_expired()

    def _make_expired(self) -> RequestError:
        return RequestError(
            f"This connection has reached its age limit of {self._limits.websocket_s:g} seconds. "
            "Open a new one to go on.",
            code="websocket_connection_limit_reached",
        )

    # Lanes

    async def _work(self, lane: _Lane) -> None:
        """Answer what waits in a lane, one after the other."""
        try:
            while lane.waiting:
                if isinstance(error := lane.waiting[0], AntiphonError):
                    await self.send_error(error, lane.name)
                    lane.waiting.popleft()
                    self._refused -= 1
                    continue
                async with self._running:
                    await self._answer_next(lane)
        except OSError:
            # Nobody reads any more.
            self._leave()
        finally:
            lane.task = None
            self._close_when_idle()

    async def _answer_next(self, lane: _Lane) -> None:
        entry = lane.waiting.popleft()
        if not isinstance(entry, AntiphonError):
            frame, size = entry
            self._waiting -= 1
            self._waiting_bytes -= size
            await self._answer(frame, size, lane.name)

    async def _answer(self, frame: ClientFrame, size: int, lane: str | None) -> None:
        answering = _Answering(self, lane)
        try:
            try:
                self._refuse_when_closing()
                await answering.run(await self._read_request(frame, size, lane))
            except AntiphonError as error:
                if error.status >= 500:
                    _log.warning("a response over WebSocket was refused: %s", describe_error(error))
                await self.send_error(error, lane)
            except OSError:
                # Nobody reads any more.
                self._leave()
                await answering.abandon()
            except Exception:  # noqa: BLE001 - the request is one of the three places that catch broadly
                _log.exception("a response over WebSocket failed by a fault of our own")
                await self.send_error(AntiphonError(INTERNAL_ERROR), lane)
        except asyncio.CancelledError:
            # Cancelled once only, by `_end_lanes`, which waits for these last words.
            await (answering.abandon() if self._has_left else answering.interrupt())
            raise
        finally:
            await answering.close()

    async def _read_request(self, frame: ClientFrame, size: int, lane: str | None) -> CreateRequest:
        try:
            if size < LARGE_BODY_BYTES:
                request = read_socket_request(frame)
            else:
                request = await asyncio.to_thread(read_socket_request, frame)
            check_input_length(request, self._limits)
        except RequestError:
            self._connection.note_failure(read_parent(frame), lane)
            raise
        return request

    # Ends

    def stop(self) -> None:
        """What runs may end; then the connection is closed."""
        self._is_stopping = True
        self._close_when_idle()

    def _expire(self) -> None:
        self._has_expired = True
        self._close_when_idle()

    def _leave(self) -> None:
        """The client reads nothing any more."""
        self._has_left = self._is_ending = True
        if self._reader is not None:
            self._reader.cancel()

    def _close_when_idle(self) -> None:
        is_closing = self._is_stopping or self._has_expired
        if not is_closing or self._is_ending or self._closer is not None:
            return
        if any(lane.task is not None for lane in self._lanes.values()):
            return
        self._closer = asyncio.create_task(self._say_goodbye())

    async def _say_goodbye(self) -> None:
        try:
            if not self._is_stopping:
                await self.send_error(self._make_expired(), None)
        except OSError:
            self._leave()
        else:
            await self._close(SERVICE_RESTART if self._is_stopping else NORMAL_CLOSURE)

    async def _close(self, code: int) -> None:
        """Say that nothing follows; what comes from now on is not answered."""
        self._is_closed = True
        try:
            async with asyncio.timeout(self._patience_s):
                await self._send({"type": "websocket.close", "code": code})
        except (OSError, RuntimeError):
            # It is closed already, or nobody reads.
            self._leave()

    async def _end_lanes(self) -> None:
        """Cancel what runs: abandoned where the client has left, else told its end."""
        self._is_ending = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        for lane in self._lanes.values():
            while lane.waiting:
                entry = lane.waiting.popleft()
                if not self._has_left:
                    error = entry if isinstance(entry, AntiphonError) else ServerStoppingError()
                    await self._try_send_error(error, lane.name)

    async def _send_text(self, data: bytes) -> None:
        if self._is_closed:
            raise ConnectionResetError
        try:
            await self._send({"type": "websocket.send", "text": data.decode()})
        except RuntimeError:
            if not self._is_closed:
                raise
            # It was closed while this waited for a client that did not read.
            raise ConnectionResetError from None

    async def _send_bounded(self, data: bytes) -> None:
        """Where nobody else watches how long it takes; raises `OSError` when it takes too long."""
        async with asyncio.timeout(self._patience_s):
            await self._send_text(data)

    @property
    def _patience_s(self) -> float:
        """How long a client may keep a message waiting."""
        patience_s = self._limits.write_timeout_s
        return min(patience_s, LAST_WORDS_S) if self._is_stopping else patience_s

    async def _try_send_error(self, error: AntiphonError, lane: str | None) -> None:
        try:
            await self.send_error(error, lane)
        except OSError:
            self._leave()

    # What `_Answering` needs

    async def enter(self) -> Lease:
        """A place among all requests that ask models; waits for one."""
        return await self._admission.enter(self._access)

    def give_back(self) -> None:
        """A request that had a place does not count for its key."""
        self._admission.uncharge(self._access)

    @property
    def connection(self) -> Connection:
        """What this connection can continue."""
        return self._connection

    def make_sender(self, round_: Round, lane: str | None) -> LaneSender:
        """Sends a round's events to this client."""
        return LaneSender(
            round_,
            self._send_text,
            lane,
            self._limits,
            settle=lambda: self._connection.note_end(round_, lane),
            give_up=self._leave,
        )

    async def send_error(self, error: AntiphonError, lane: str | None) -> None:
        """One error frame; raises `OSError` where the client has left, or does not read it in time."""
        await self._send_bounded(encode_error_frame(error, lane))

    @property
    def status_wait_s(self) -> float:
        """How long a refusal of the model server is waited for before the response begins."""
        return self._limits.status_wait_s


class _Answering:
    """One request of a lane, from its round to its end."""

    def __init__(self, session: SocketSession, lane: str | None) -> None:
        self._session = session
        self._lane = lane
        self._lease: Lease | None = None
        self._round: Round | None = None
        self._sender: LaneSender | None = None
        self._abandoning: asyncio.Task[None] | None = None

    async def run(self, request: CreateRequest) -> None:
        """The whole response."""
        connection = self._session.connection
        if request.generate:
            self._lease = await self._session.enter()
        try:
            self._round = await connection.open_round(request, self._lane)
        except OverloadedError:
            # Refused here, and no model was asked.
            if self._lease is not None:
                self._session.give_back()
            raise
        try:
            await self._round.start(self._session.status_wait_s)
        except AntiphonError:
            connection.note_failure(request.previous_response_id, self._lane)
            raise
        self._sender = self._session.make_sender(self._round, self._lane)
        await self._sender.run()

    async def abandon(self) -> None:
        """The client left. Done once, whoever asks for it, and to its end: a cancellation does not cut it short."""
        if self._abandoning is None:
            if self._round is None:
                return
            self._abandoning = asyncio.create_task(self._round.abandon())
        await asyncio.shield(self._abandoning)

    async def interrupt(self) -> None:
        """The server stops."""
        try:
            if self._sender is not None:
                await self._sender.interrupt(ServerStoppingError())
                return
            await self.abandon()
            await self._session.send_error(ServerStoppingError(), self._lane)
        except OSError:
            await self.abandon()

    async def close(self) -> None:
        """Let go of everything."""
        try:
            if self._abandoning is not None:
                await asyncio.shield(self._abandoning)
            elif self._round is not None:
                await self._round.close()
        finally:
            if self._lease is not None:
                self._lease.leave()


async def _refuse_upgrade(scope: Any, send: Any, request_id: bytes, error: AntiphonError) -> None:
    """An HTTP answer instead of the upgrade; where the server below cannot send one, the connection is refused."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": NORMAL_CLOSURE})
        return

    async def send_http(message: Any) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_error(send_http, request_id, error)
