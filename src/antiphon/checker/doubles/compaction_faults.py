"""Faults of compaction, one each: a family whose members are named after the requirement that they break.

A docstring says what its server does. None knows a requirement.
"""

from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles.answering import MODEL, Record
from antiphon.checker.doubles.honest import HonestDouble, Item, list_items
from antiphon.checker.doubles.rules import COMPACTIONS, TRIGGER, is_triggered
from antiphon.checker.doubles.sealing import Sealed, open_seal
from antiphon.protocol.errors import RequestError

Event = dict[str, Any]


# The trigger.


class AnswersToo(HonestDouble):
    """Says something beside the compaction item that a trigger asks for."""

    def make_triggered(self, window: list[Item]) -> list[Item]:
        return [*super().make_triggered(window), self.make_message("Compacted.")]


class ChangesItem(HonestDouble):
    """Adds another compaction item to a stream than it sends when that is done."""

    def stream_compaction(self, index: int, item: Item) -> Iterator[Event]:
        for event in super().stream_compaction(index, item):
            added = event["type"] == "response.output_item.added"
            yield {**event, "item": {**item, "id": "cmp_0"}} if added else event


class TakesTwoTriggers(HonestDouble):
    """Takes two triggers as one."""

    allowed = frozenset({"triggers"})


class TakesTriggerAnywhere(HonestDouble):
    """Passes over a trigger that is not the last item."""

    allowed = frozenset({"trigger_place"})


class TakesSmallBudget(HonestDouble):
    """Compacts whatever the output budget is."""

    allowed = frozenset({"trigger_budget"})


class CompactsInputAlone(HonestDouble):
    """Compacts the input of a request, and not what came before it."""

    def find_context(self, body: dict[str, Any], parent: Record | None) -> list[Item]:
        return [] if is_triggered(body) else super().find_context(body, parent)


class ListsTrigger(HonestDouble):
    """Keeps the trigger as if it were something that was said."""

    def drop_trigger(self, given: list[Item]) -> list[Item]:
        return given


class IgnoresTriggerInFrames(HonestDouble):
    """Passes over a trigger that comes over a WebSocket."""

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        body = super().prepare_frame(frame)
        return {
            **body,
            "input": [item for item in list_items(body.get("input")) if item.get("type") != TRIGGER],
        }


# The item.


class ContinuesFromNothing(HonestDouble):
    """Keeps nothing under the id of a response that compacted on a trigger."""

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        super().keep(Record(record.given, [], record.response) if is_triggered(body) else record, body)


class NeedsStore(HonestDouble):
    """Seals an empty window where the response is not stored."""

    unstored = False

    def produce(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        self.unstored = body.get("store") is False
        return super().produce(window, instructions, body)

    def keep_items(self, window: list[Item], *, closes: bool) -> list[Item]:
        return [] if self.unstored else super().keep_items(window, closes=closes)


class AddsWindow(HonestDouble):
    """Shows what a compaction item stands for a second time where it is sent before it."""

    def supersede(self, shown: list[Item], sealed: Sealed) -> list[Item]:
        return shown


class KnowsOneName(HonestDouble):
    """Does not know the other name of a compaction item."""

    def check_request(self, body: dict[str, Any]) -> None:
        for item in list_items(body.get("input")):
            if item.get("type") == COMPACTIONS[1]:
                raise RequestError(
                    f"Invalid value: '{item['type']}'.", param="input[0]", code="invalid_value"
                )


class CompactsOnce(HonestDouble):
    """Forgets what was compacted before when it compacts again."""

    def keep_items(self, window: list[Item], *, closes: bool) -> list[Item]:
        is_second = any(item.get("role") == "developer" for item in window)
        return [] if is_second else super().keep_items(window, closes=closes)


class SealsForModel(HonestDouble):
    """Opens a compaction item for the model that it was made under alone."""

    def check_model(self, body: dict[str, Any]) -> None:
        super().check_model(body)
        self.tenant = f"{self.tenant}/{body['model']}"


class OpensAnything(HonestDouble):
    """Takes a seal that it cannot open for an empty window."""

    allowed = frozenset({"invalid_encrypted_content", "told_items"})

    def open_item(self, item: Item) -> Sealed:
        return open_seal(item.get("encrypted_content")) or Sealed(self.tenant, False, [])


class OpensForOthers(HonestDouble):
    """Opens what it has sealed for another key."""

    def open_item(self, item: Item) -> Sealed:
        sealed = open_seal(item.get("encrypted_content"))
        return sealed if sealed is not None else super().open_item(item)


# Its own route.


class ListsUsersBackwards(HonestDouble):
    """Lists the user's messages newest first."""

    def list_users(self, window: list[Item]) -> list[Item]:
        return super().list_users(window)[::-1]


class DropsListedUsers(HonestDouble):
    """Drops the user's messages that were listed before a compaction item."""

    def supersede(self, shown: list[Item], sealed: Sealed) -> list[Item]:
        return []


class CompactsGivenAlone(HonestDouble):
    """Compacts on its own route what is sent, and not what is named by an id."""

    def compact(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input") or ("Nothing." if "previous_response_id" in body else None)
        kept = {name: value for name, value in body.items() if name not in ("input", "previous_response_id")}
        return super().compact(kept if given is None else {**kept, "input": given})


class StoresCompactions(HonestDouble):
    """Keeps a compaction under its id as if it were a response."""

    def finish_compaction(self, compacted: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        made = self.make_response({**body, "model": MODEL}, [], "", [self.make_message("Compacted.")])
        response = {**made, "id": compacted["id"]}
        self.records[compacted["id"]] = Record([], compacted["output"], response)
        return compacted


class TakesAnyCompaction(HonestDouble):
    """Passes over fields that make no compaction."""

    def check_compact(self, body: dict[str, Any]) -> None:
        for name in ("stream", "store", "include", "conversation"):
            body.pop(name, None)
        super().check_compact(body)


class CompactsNothing(HonestDouble):
    """Compacts nothing at all into an item."""

    def check_compact(self, body: dict[str, Any]) -> None:
        super().check_compact({**body, "input": "Nothing."})


class LacksTime(HonestDouble):
    """Does not say when a compaction was made."""

    def finish_compaction(self, compacted: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in compacted.items() if name != "created_at"}


class AssumesModelOfCompaction(HonestDouble):
    """Compacts without being told by which model."""

    def compact(self, body: dict[str, Any]) -> dict[str, Any]:
        return super().compact({"model": MODEL, **body})


class TakesNoItemsInFrames(HonestDouble):
    """Opens no compaction item over a WebSocket."""

    def prepare_frame(self, frame: dict[str, Any]) -> dict[str, Any]:
        body = super().prepare_frame(frame)
        if any(item.get("type") in COMPACTIONS for item in list_items(body.get("input"))):
            raise RequestError("Compaction items are not supported here.", param="input")
        return body


class AnswersEmpty(HonestDouble):
    """Answers on the route of compactions with an empty object."""

    def compact(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}


# By itself.


class TakesAnyType(HonestDouble):
    """Takes any way to manage the context."""

    allowed = frozenset({"context_type"})


class TakesAnyThreshold(HonestDouble):
    """Takes any threshold."""

    allowed = frozenset({"context_threshold"})


class TakesAnyShape(HonestDouble):
    """Takes a way to manage the context whatever its shape is."""

    allowed = frozenset({"context_shape"})


class CompactsAlways(HonestDouble):
    """Compacts whenever it may."""

    def is_due(self, body: dict[str, Any], tokens: int) -> bool:
        return bool(body.get("context_management"))


class CompactsLast(HonestDouble):
    """Sends the compaction item after the answer."""

    def place_compaction(self, item: Item, output: list[Item]) -> list[Item]:
        return [*output, item]


class GoesOnWithEverything(HonestDouble):
    """Goes on with the whole history after it has compacted by itself."""

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        if body.get("context_management"):
            whole = [item for item in record.window if item.get("type") not in COMPACTIONS]
            record = Record(record.given, whole, record.response)
        super().keep(record, body)


#: Requirement of the area `compaction`, or name of a test of the suite -> the double that breaks it.
COMPACTION_DOUBLES: dict[str, type[HonestDouble]] = {
    "trigger": AnswersToo,
    "trigger-stream": ChangesItem,
    "trigger-once": TakesTwoTriggers,
    "trigger-last": TakesTriggerAnywhere,
    "trigger-budget": TakesSmallBudget,
    "trigger-by-id": CompactsInputAlone,
    "trigger-unlisted": ListsTrigger,
    "trigger-websocket": IgnoresTriggerInFrames,
    "continues": ContinuesFromNothing,
    "store-false": NeedsStore,
    "supersedes": AddsWindow,
    "alias": KnowsOneName,
    "again": CompactsOnce,
    "other-model": SealsForModel,
    "broken-seal": OpensAnything,
    "other-key": OpensForOthers,
    "compact-shape": ListsUsersBackwards,
    "compact-continues": DropsListedUsers,
    "compact-by-id": CompactsGivenAlone,
    "compact-stateless": StoresCompactions,
    "compact-rejects": TakesAnyCompaction,
    "compact-nothing": CompactsNothing,
    "compact-response": LacksTime,
    "compact-missing-model": AssumesModelOfCompaction,
    "compact-new-chain": TakesNoItemsInFrames,
    "compact": AnswersEmpty,
    "context-type": TakesAnyType,
    "context-threshold": TakesAnyThreshold,
    "context-shape": TakesAnyShape,
    "context-under": CompactsAlways,
    "context-first": CompactsLast,
    "context-drops": GoesOnWithEverything,
}
