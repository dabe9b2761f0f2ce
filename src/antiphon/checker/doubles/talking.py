"""The part of the honest double that talks over a WebSocket: lanes, warm-ups, and what one connection can continue.

It answers frame by frame, so a lane is always in order. Invariant: each method under "seams" is one thing that a
server can get wrong.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.checker.doubles.answering import Record
from antiphon.checker.doubles.toy import Receive, Scope, Send, read_key
from antiphon.checker.doubles.working import WorkingDouble
from antiphon.protocol.errors import RequestError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS

#: Named lanes that a connection may have.
MAX_LANES = 32

_LANE = re.compile(r"[\w.:-]{1,64}", re.ASCII)
#: Of a request over HTTP alone.
_IGNORED = ("stream", "stream_options", "type", "stream_id", "generate")

Event = dict[str, Any]


class Connection(msgspec.Struct):
    """One WebSocket: whose it is, its lanes, and the latest response of each, stored or not."""

    key: str
    lanes: set[str] = msgspec.field(default_factory=set)
    held: dict[str | None, Record] = msgspec.field(default_factory=dict)


class TalkingDouble(WorkingDouble):
    """Takes WebSockets."""

    #: Whether an upgrade is taken.
    takes_sockets = True

    # The seams.

    async def refuse_socket(self, send: Send) -> None:
        """Answers an upgrade over HTTP."""
        await send({"type": "websocket.close"})

    def read_frame(self, message: Any) -> dict[str, Any]:
        """The frame in a message; refuses what is none."""
        try:
            frame = msgspec.json.decode(message.get("text") or b"")
        except msgspec.DecodeError as error:
            raise RequestError("A frame is a JSON object, as text.", code="invalid_json") from error
        if not isinstance(frame, dict):
            raise RequestError("A frame is a JSON object.", code="invalid_type")
        return frame

    def check_frame_type(self, frame: dict[str, Any]) -> None:
        """Refuses types that there are not."""
        if frame.get("type") not in ("response.create", "response.steer"):
            raise RequestError(f"Invalid value: '{frame.get('type')}'.", param="type", code="invalid_value")

    def check_lane(self, connection: Connection, lane: Any) -> None:
        """Refuses names that are none, and one lane too many."""
        if lane is None:
            return
        if not isinstance(lane, str) or not _LANE.fullmatch(lane):
            raise RequestError("Invalid 'stream_id'.", param="stream_id", code="invalid_stream_id")
        if lane not in connection.lanes and len(connection.lanes) >= MAX_LANES:
            raise RequestError(
                f"No more than {MAX_LANES} streams.", param="stream_id", code="websocket_stream_limit_reached"
            )
        connection.lanes.add(lane)

    def check_frame(self, frame: dict[str, Any]) -> None:
        """Refuses what has no place on a connection."""
        if frame.get("background"):
            raise RequestError(
                "'background' is not supported over WebSocket.",
                param="background",
                code="unsupported_parameter",
            )

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        """The request in a frame."""
        return {name: value for name, value in frame.items() if name not in _IGNORED}

    def list_held(self, connection: Connection) -> dict[str, Record]:
        """What can be continued here beside what is stored."""
        return {record.response["id"]: record for record in connection.held.values()}

    def choose_stored(self, stored: dict[str, Record]) -> dict[str, Record]:
        """What of the stored responses can be continued here: all."""
        return stored

    def evict(self, connection: Connection, lane: str | None, parent: Any) -> None:
        """A failed continuation takes its parent away from the lane where it stands."""
        held = connection.held.get(lane)
        if held is not None and held.response["id"] == parent:
            del connection.held[lane]

    def answer_steer(self, frame: dict[str, Any]) -> Iterator[Event]:
        """Refuses to steer."""
        error = {
            "type": "invalid_request_error",
            "code": "steering_not_supported",
            "message": "A response cannot be steered here.",
            "param": None,
        }
        yield {"type": "response.steer.failed", "steer": frame, "error": error}

    def warm_up(self, body: dict[str, Any]) -> dict[str, Any]:
        """A response that is made ready and not generated."""
        body = {**body, "input": body.get("input") or []}
        if body["input"]:
            self.check(body)
        _, given, window, instructions = self.gather(body)
        made = self.make_response(body, window, instructions, [])
        ended = {"status": "completed", "error": None, "incomplete_details": None, "completed_at": 0}
        response = self.finish({**made, **ended, "usage": self.make_usage(0, [])})
        self.last = Record(given, window, response)
        self.keep(self.last, body)
        return response

    def stream_frames(self, response: dict[str, Any]) -> Iterator[Event]:
        """The events of a response as frames; what failed is told by its last one alone."""
        return self.number(event for event in self.stream(response) if event["type"] != "error")

    def mark(self, event: Event, lane: str | None) -> Event:
        """The frame of a lane."""
        return event if lane is None else {**event, "stream_id": lane}

    def make_error_frame(self, error: RequestError) -> Event:
        """The frame of a refusal."""
        told = error.to_object()
        return {
            "type": "error",
            "status": error.status,
            "error": {
                "type": told.type,
                "code": told.code or told.type,
                "message": told.message,
                "param": told.param,
            },
        }

    def is_broken_by(self, error: RequestError) -> bool:
        """Whether a refusal ends the connection."""
        return False

    # The machinery.

    async def talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        await receive()
        if not self.takes_sockets:
            await self.refuse_socket(send)
            return
        await send({"type": "websocket.accept"})
        connection = Connection(self.choose_tenant(read_key(scope)))
        try:
            while (message := await receive())["type"] == "websocket.receive":
                if not await self._answer(connection, message, send):
                    await send({"type": "websocket.close", "code": 1011})
                    return
        except OSError:
            # The client left.
            return

    async def _answer(self, connection: Connection, message: Any, send: Send) -> bool:
        lane: str | None = None
        is_open = True
        try:
            frame = self.read_frame(message)
            given = frame.get("stream_id")
            lane = given if isinstance(given, str) else None
            self.check_lane(connection, given)
            frames = self._answer_frame(connection, frame, lane)
            # As over HTTP, where an answer that has no end breaks off.
            is_open = frame.get("type") != "response.create" or _has_end(frames)
        except RequestError as error:
            frames = [self.make_error_frame(error)]
            is_open = not self.is_broken_by(error)
        for event in frames:
            await send(
                {"type": "websocket.send", "text": msgspec.json.encode(self.mark(event, lane)).decode()}
            )
        return is_open

    def _answer_frame(self, connection: Connection, frame: dict[str, Any], lane: str | None) -> list[Event]:
        self.check_frame_type(frame)
        if frame.get("type") == "response.steer":
            return list(self.answer_steer(frame))
        if frame.get("type") != "response.create":
            return []
        self.check_frame(frame)
        response = self._carry_out(
            connection, self.prepare_frame(frame), lane, frame.get("generate") is not False
        )
        return list(self.stream_frames(response))

    def _carry_out(
        self, connection: Connection, body: dict[str, Any], lane: str | None, generate: bool
    ) -> dict[str, Any]:
        stored = self.tenants.setdefault(connection.key, {})
        before = {**self.choose_stored(stored), **self.list_held(connection)}
        self.records = dict(before)
        self.tenant = connection.key
        self.conversations = self.shelves.setdefault(connection.key, {})
        parent = body.get("previous_response_id")
        try:
            response = self.respond(self.prepare(body)) if generate else self.warm_up(body)
        except RequestError:
            self.evict(connection, lane, parent)
            raise
        stored.update({name: record for name, record in self.records.items() if name not in before})
        if response["status"] == "failed":
            self.evict(connection, lane, parent)
        elif self.last is not None:
            connection.held[lane] = self.last
        return response


def _has_end(frames: list[Event]) -> bool:
    return any(event.get("type") in TERMINAL_EVENTS for event in frames)
