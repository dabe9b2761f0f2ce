"""Faults of WebSocket mode, one each.

A docstring says what its server does. None knows a requirement.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles.answering import Record
from antiphon.checker.doubles.honest import HonestDouble, Send
from antiphon.checker.doubles.talking import Connection
from antiphon.checker.doubles.toy import Receive, Scope
from antiphon.protocol.errors import RequestError

Event = dict[str, Any]


class HasNoSockets(HonestDouble):
    """Answers an upgrade with 426, which is honest: nobody need have a WebSocket."""

    takes_sockets = False


class BreaksUpgrades(HonestDouble):
    """Answers an upgrade with 400 and a text that says nothing."""

    takes_sockets = False

    async def refuse_socket(self, send: Send) -> None:
        await send({"type": "websocket.http.response.start", "status": 400, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"No."})


class ForgetsConnection(HonestDouble):
    """Continues over WebSocket what is stored alone."""

    def list_held(self, connection: Connection) -> dict[str, Record]:
        return {}


class DropsHeldHistory(HonestDouble):
    """Takes the id of a response that is not stored, and shows the model nothing of it."""

    def list_held(self, connection: Connection) -> dict[str, Record]:
        held = super().list_held(connection)
        return {name: Record([], [], record.response) for name, record in held.items()}


class SharesConnections(HonestDouble):
    """Lets every connection continue what any connection has answered, whoever it is."""

    def __init__(self) -> None:
        super().__init__()
        self._all: dict[str, Record] = {}

    def list_held(self, connection: Connection) -> dict[str, Record]:
        self._all |= super().list_held(connection)
        return dict(self._all)


class ContinuesAnything(HonestDouble):
    """Answers a frame with an unknown parent as if it had none."""

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        body = super().prepare_frame(frame)
        known = {name for kept in self.tenants.values() for name in kept}
        if body.get("previous_response_id") not in known:
            body.pop("previous_response_id", None)
        return body


class KeepsParent(HonestDouble):
    """Keeps the parent of a failed continuation."""

    def evict(self, connection: Connection, lane: str | None, parent: Any) -> None:
        return


class EvictsEverywhere(HonestDouble):
    """A failed continuation takes its parent away from every lane."""

    def evict(self, connection: Connection, lane: str | None, parent: Any) -> None:
        for name, record in list(connection.held.items()):
            if record.response["id"] == parent:
                del connection.held[name]


class BareSocketErrors(HonestDouble):
    """Sends an error frame without a status and without its param."""

    def make_error_frame(self, error: RequestError) -> Event:
        frame = super().make_error_frame(error)
        frame["error"].pop("param")
        return {"type": "error", "error": frame["error"]}


class ClosesOnError(HonestDouble):
    """Closes the connection after an error frame."""

    def is_broken_by(self, error: RequestError) -> bool:
        return True


class PassesFramesOver(HonestDouble):
    """Says nothing to a frame that it does not know or cannot read."""

    def read_frame(self, message: Any) -> dict[str, Any]:
        try:
            return super().read_frame(message)
        except RequestError:
            return {}

    def check_frame_type(self, frame: dict[str, Any]) -> None:
        return


class IgnoresSteering(HonestDouble):
    """Says nothing to response.steer."""

    def answer_steer(self, frame: dict[str, Any]) -> Iterator[Event]:
        return iter(())


class RunsBackgroundFrames(HonestDouble):
    """Takes background:true over WebSocket, and answers at once."""

    def check_frame(self, frame: dict[str, Any]) -> None:
        return

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        body = super().prepare_frame(frame)
        body.pop("background", None)
        return body


class RefusesStreamField(HonestDouble):
    """Refuses a frame with stream or stream_options."""

    def check_frame(self, frame: dict[str, Any]) -> None:
        super().check_frame(frame)
        for name in ("stream", "stream_options"):
            if name in frame:
                raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


class LeavesLanesOut(HonestDouble):
    """Sends events of a lane without its stream_id."""

    def mark(self, event: Event, lane: str | None) -> Event:
        return event


class LeavesLaneOutOfErrors(HonestDouble):
    """Sends errors of a lane without its stream_id."""

    def mark(self, event: Event, lane: str | None) -> Event:
        return event if event["type"] == "error" else super().mark(event, lane)


class MixesLanes(HonestDouble):
    """Numbers the events of all lanes of a connection together."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def mark(self, event: Event, lane: str | None) -> Event:
        if lane is not None and "sequence_number" in event:
            event = {**event, "sequence_number": next(self._numbers)}
        return super().mark(event, lane)


class TakesLastFirst(HonestDouble):
    """Answers what waits in a lane in the wrong order."""

    def stream_frames(self, response: dict[str, Any]) -> Iterator[Event]:
        place = response["metadata"].get("place")
        if place is not None:
            response = {**response, "metadata": {**response["metadata"], "place": str(2 - int(place))}}
        return super().stream_frames(response)


class TakesAnyLane(HonestDouble):
    """Takes any stream_id, and as many as there are."""

    def check_lane(self, connection: Connection, lane: Any) -> None:
        return


class HasAnyNumberOfLanes(HonestDouble):
    """Takes as many lanes as there are."""

    def check_lane(self, connection: Connection, lane: Any) -> None:
        connection.lanes.clear()
        super().check_lane(connection, lane)


class GeneratesWarmUps(HonestDouble):
    """Answers a request with generate:false like any other."""

    def warm_up(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.respond(body)


class ForgetsWarmUps(HonestDouble):
    """Answers a warm-up, and shows the model nothing of it later."""

    def warm_up(self, body: dict[str, Any]) -> dict[str, Any]:
        response = super().warm_up(body)
        if self.last is not None:
            self.last.window = []
        return response


class WantsInputOfWarmUps(HonestDouble):
    """Refuses a warm-up without input."""

    def warm_up(self, body: dict[str, Any]) -> dict[str, Any]:
        self.check(body)
        return super().warm_up(body)


class ForgetsStoredOnSockets(HonestDouble):
    """Does not find over WebSocket what was stored over HTTP."""

    def choose_stored(self, stored: dict[str, Record]) -> dict[str, Record]:
        return {}


class NeverStoresFromSockets(HonestDouble):
    """Stores nothing that was answered over WebSocket."""

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        return {**super().prepare_frame(frame), "store": False}


class SkipsCreatedOnSockets(HonestDouble):
    """Begins over WebSocket with response.in_progress."""

    def stream_frames(self, response: dict[str, Any]) -> Iterator[Event]:
        events = (
            event for event in self.stream(response) if event["type"] not in ("error", "response.created")
        )
        return self.number(events)


class SendsWholeTexts(HonestDouble):
    """Sends over WebSocket no deltas."""

    def stream_frames(self, response: dict[str, Any]) -> Iterator[Event]:
        return self.number(
            event
            for event in self.stream(response)
            if event["type"] not in ("error", "response.output_text.delta")
        )


class BareSocketResponses(HonestDouble):
    """Sends over WebSocket a last response without most of its members."""

    def stream_frames(self, response: dict[str, Any]) -> Iterator[Event]:
        for event in super().stream_frames(response):
            if event["type"] == "response.completed":
                kept = ("id", "object", "status", "output", "usage", "metadata")
                event = {**event, "response": {name: response[name] for name in kept}}
            yield event


class AnswersOneFrame(HonestDouble):
    """Answers the first frame of a connection, and is silent from then on."""

    async def talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def receive_one() -> Any:
            nonlocal taken
            while True:
                message = await receive()
                taken += message["type"] == "websocket.receive"
                if message["type"] != "websocket.receive" or taken == 1:
                    return message

        await super().talk(scope, receive_one, send)


SOCKET_DOUBLES: dict[str, type[HonestDouble]] = {
    "has-no-sockets": HasNoSockets,
    "breaks-upgrades": BreaksUpgrades,
    "forgets-connection": ForgetsConnection,
    "drops-held-history": DropsHeldHistory,
    "shares-connections": SharesConnections,
    "continues-anything": ContinuesAnything,
    "keeps-parent": KeepsParent,
    "evicts-everywhere": EvictsEverywhere,
    "bare-socket-errors": BareSocketErrors,
    "closes-on-error": ClosesOnError,
    "answers-one-frame": AnswersOneFrame,
    "passes-frames-over": PassesFramesOver,
    "ignores-steering": IgnoresSteering,
    "runs-background-frames": RunsBackgroundFrames,
    "refuses-stream-field": RefusesStreamField,
    "leaves-lanes-out": LeavesLanesOut,
    "leaves-lane-out-of-errors": LeavesLaneOutOfErrors,
    "mixes-lanes": MixesLanes,
    "takes-last-first": TakesLastFirst,
    "takes-any-lane": TakesAnyLane,
    "has-any-number-of-lanes": HasAnyNumberOfLanes,
    "generates-warm-ups": GeneratesWarmUps,
    "forgets-warm-ups": ForgetsWarmUps,
    "wants-input-of-warm-ups": WantsInputOfWarmUps,
    "forgets-stored-on-sockets": ForgetsStoredOnSockets,
    "never-stores-from-sockets": NeverStoresFromSockets,
    "skips-created-on-sockets": SkipsCreatedOnSockets,
    "sends-whole-texts": SendsWholeTexts,
    "bare-socket-responses": BareSocketResponses,
}
