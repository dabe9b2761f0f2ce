"""The application: `POST /v1/responses` straight from ASGI, everything else through Starlette's router.

The hot route has no middleware and no request object between the socket and the engine. Invariant: every
request gets one answer in the API's shape, whatever fails.
"""

import asyncio
import logging
from typing import Any

import msgspec

from antiphon.engine import Engine, Round
from antiphon.protocol.errors import AntiphonError, OverloadedError, ServerStoppingError
from antiphon.protocol.requests import CreateRequest, decode_create_request
from antiphon.server.admission import Admission, Lease
from antiphon.server.bodies import LARGE_BODY_BYTES, ClientGoneError, check_input_length, read_body
from antiphon.server.headers import read_headers
from antiphon.server.keys import Access, Keyring
from antiphon.server.log_format import describe_error
from antiphon.server.replies import INTERNAL_ERROR, make_request_id, send_error, send_json
from antiphon.server.route import RESPONSES_PATH
from antiphon.server.routes import Routes, stream_events
from antiphon.server.settings import ServerLimits
from antiphon.server.sockets import Sockets
from antiphon.server.streaming import DisconnectWatch, StreamSender

_log = logging.getLogger("antiphon.server")
_encode = msgspec.json.Encoder().encode
#: The connection is not used again.
_LAST_ANSWER = (b"connection", b"close")


class Application:
    """An ASGI application over an engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        keys: Keyring | None = None,
        limits: ServerLimits | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._engine = engine
        self._admission = admission or Admission()
        self._keys = keys or Keyring()
        self._limits = limits or ServerLimits()
        self._routes = Routes(engine, self._limits, self._admission)
        self._sockets = Sockets(engine, self._keys, self._limits, self._admission)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await self._sockets.serve(scope, receive, send)
            return
        request_id = make_request_id()
        answering = _Answering(send)
        try:
            headers = read_headers(scope["headers"])
            if scope["path"] == RESPONSES_PATH and scope["method"] == "POST":
                await self._create(headers, receive, answering, request_id)
            else:
                await self._routes.answer(scope, headers, self._keys, receive, answering, request_id)
        except AntiphonError as error:
            if error.status >= 500:
                _log.warning("%s: %s", request_id.decode(), describe_error(error))
            if isinstance(error, ServerStoppingError):
                await _tell_of_stop(answering, request_id)
            elif not answering.started:
                await send_error(answering, request_id, error)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            # The server stops: whoever waits for a status is told. Shielded, for it is said once.
            await asyncio.shield(_tell_of_stop(answering, request_id))
            raise
        except Exception:  # noqa: BLE001 - the request is one of the three places that catch broadly
            _log.exception("%s failed by a fault of our own", request_id.decode())
            if not answering.started:
                await send_error(send, request_id, AntiphonError(INTERNAL_ERROR))

    def stop(self) -> None:
        """The server stops soon: nothing new is taken, and connections that stay open are closed when they are idle."""
        self._admission.stop()
        self._sockets.stop()

    async def _create(
        self, headers: dict[bytes, bytes], receive: Any, send: "_Answering", request_id: bytes
    ) -> None:
        access = self._keys.find_access(headers)
        body = await read_body(headers, receive, self._limits)
        if len(body) < LARGE_BODY_BYTES:
            request = decode_create_request(body)
        else:
            request = await asyncio.to_thread(decode_create_request, body)
        check_input_length(request, self._limits)
        if request.background:
            await self._queue(request, body, access, receive, send, request_id)
            return
        watch = DisconnectWatch(receive)
        round_: Round | None = None
        sender: StreamSender | None = None
        lease: Lease | None = None
        try:
            lease = await self._admission.enter(access)
            send.extra = lease.headers
            round_ = await self._engine.open_round(
                request, access.tenant, zero_retention=access.zero_retention
            )
            if request.stream:
                await round_.start(self._limits.status_wait_s)
                sender = StreamSender(round_, send.begin(), watch, self._limits)
                await sender.run(request_id)
            else:
                response = await round_.collect()
                watch.close()
                async with asyncio.timeout(self._limits.write_timeout_s):
                    await send_json(send, request_id, _encode(response))
        except OverloadedError:
            # Refused here, and no model was asked.
            send.extra = self._admission.uncharge(access)
            raise
        except (OSError, TimeoutError):
            # Nobody reads: the connection broke, or the client stopped taking what is sent.
            watch.close()
            if round_ is not None:
                await round_.abandon()
        except asyncio.CancelledError:
            watch.close()
            if watch.left:
                watch.take_back_cancellation()
                if round_ is not None:
                    await round_.abandon()
                return
            # The server stops: the client is told, and the round is kept as what it had become.
            await asyncio.shield(self._say_goodbye(round_, sender, send, request_id))
            raise
        finally:
            watch.close()
            try:
                if round_ is not None:
                    await round_.close()
            finally:
                if lease is not None:
                    lease.leave()

    async def _queue(
        self,
        request: CreateRequest,
        body: bytes,
        access: Access,
        receive: Any,
        send: "_Answering",
        request_id: bytes,
    ) -> None:
        """A background response: told at once that it waits, or streamed; it goes on when the client leaves."""
        send.extra = self._admission.charge(access)
        try:
            live = await self._engine.submit(
                request, body, access.tenant, zero_retention=access.zero_retention
            )
        except (OverloadedError, ServerStoppingError):
            send.extra = self._admission.uncharge(access)
            raise
        if request.stream:
            source = await self._engine.background.follow(access.tenant, live.id)
            await stream_events(source, receive, send.begin(), request_id, self._limits)
        else:
            await send_json(send, request_id, _encode(live.show()))

    async def _say_goodbye(
        self, round_: Round | None, sender: StreamSender | None, send: "_Answering", request_id: bytes
    ) -> None:
        if sender is not None:
            await sender.interrupt(ServerStoppingError())
            return
        response = await round_.stop(ServerStoppingError()) if round_ is not None else None
        if response is not None and not send.started:
            await send_json(send, request_id, _encode(response))
        else:
            await _tell_of_stop(send, request_id)


async def _tell_of_stop(send: "_Answering", request_id: bytes) -> None:
    """Whoever waits for a status hears that the server stops, and when to ask the next one."""
    if not send.started:
        send.extra = (*send.extra, _LAST_ANSWER)
        await send_error(send, request_id, ServerStoppingError())


class _Answering:
    """`send` that remembers whether an answer has begun, and adds `extra` to its headers."""

    __slots__ = ("_send", "extra", "started")

    def __init__(self, send: Any) -> None:
        self._send = send
        self.extra: tuple[tuple[bytes, bytes], ...] = ()
        self.started = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        if self.extra and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self.extra]}
        await self._send(message)

    def begin(self) -> Any:
        """For an answer that begins now: without `extra` the bare `send`, a call less for each of its messages."""
        self.started = True
        return self if self.extra else self._send
