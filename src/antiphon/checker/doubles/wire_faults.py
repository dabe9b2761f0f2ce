"""More faults: in streams, in errors, in fields that are accepted and forgotten, between keys, at a restart.

A docstring says what its server does. None knows a requirement.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles.conversing import Conversation
from antiphon.checker.doubles.honest import (
    HonestDouble,
    Item,
    Record,
    Send,
    list_items,
    send_events,
)
from antiphon.protocol.errors import ForbiddenError, RequestError

Event = dict[str, Any]


# Streams.


class SkipsCreated(HonestDouble):
    """Begins a stream without response.created."""

    def stream(self, response: dict[str, Any]) -> Iterator[Event]:
        return itertools.islice(super().stream(response), 1, None)


class NumbersFromOne(HonestDouble):
    """Numbers the events of a stream from 1."""

    def number(self, events: Iterator[Event]) -> Iterator[Event]:
        return ({**event, "sequence_number": place} for place, event in enumerate(events, 1))


class EndsTwice(HonestDouble):
    """Sends the terminal event of a stream twice."""

    def stream(self, response: dict[str, Any]) -> Iterator[Event]:
        events = list(super().stream(response))
        return iter([*events, events[-1]])


class LosesDelta(HonestDouble):
    """Leaves out the first delta of each text."""

    def stream_item(self, index: int, item: Item) -> Iterator[Event]:
        lost = False
        for event in super().stream_item(index, item):
            if event["type"] == "response.output_text.delta" and not lost:
                lost = True
                continue
            yield event


class ChangesIds(HonestDouble):
    """Gives an item another id when it is done than when it was added."""

    def stream_item(self, index: int, item: Item) -> Iterator[Event]:
        for event in super().stream_item(index, {**item, "id": f"added_{item['id']}"}):
            done = event["type"] == "response.output_item.done"
            yield {**event, "item": item} if done else event


class FinalDiffers(HonestDouble):
    """Ends a stream with another text than it streamed."""

    def stream(self, response: dict[str, Any]) -> Iterator[Event]:
        for event in super().stream(response):
            if event["type"] == f"response.{response['status']}":
                yield {
                    **event,
                    "response": {**response, "output": list(map(self._alter, response["output"]))},
                }
            else:
                yield event

    def _alter(self, item: Item) -> Item:
        if item["type"] != "message":
            return item
        return {**item, "content": [{**part, "text": part["text"] + "~"} for part in item["content"]]}


class CompletesCut(HonestDouble):
    """Completes an answer that max_output_tokens cut (llama.cpp's own Responses route)."""

    def tell_cut(self, output: list[Item]) -> dict[str, Any]:
        return {"status": "completed", "incomplete_details": None}


class BareCalls(HonestDouble):
    """Streams a function call as added and done, with nothing between."""

    def stream_item(self, index: int, item: Item) -> Iterator[Event]:
        events = list(super().stream_item(index, item))
        return iter([events[0], events[-1]] if item["type"] == "function_call" else events)


class ErrorsWithoutEnd(HonestDouble):
    """Refuses a streaming request by an error event in a stream that has no terminal event."""

    async def refuse(self, send: Send, error: RequestError, stream: bool) -> None:
        if not stream:
            await super().refuse(send, error, stream)
            return
        event = {"type": "error", "error": error.to_object()}
        await send_events(send, self.number(iter([event])))


# Errors.


class BareErrors(HonestDouble):
    """Refuses with a text instead of an error object (Ollama, and many others)."""

    def make_error(self, error: RequestError) -> Any:
        return {"error": f"{error.param}: {error.code}: {error.message}"}


class ShortErrors(HonestDouble):
    """Leaves the param out of an error, and names it in the message alone."""

    def make_error(self, error: RequestError) -> Any:
        message = f"{error.message} ({error.param})"
        return {"error": {"message": message, "type": error.type, "code": error.code}}


class IgnoresUnknownFields(HonestDouble):
    """Takes parameters that the API does not have, and forgets them."""

    allowed = frozenset({"unknown_parameter"})


class IgnoresWrongValues(HonestDouble):
    """Takes values of any type and any spelling, and makes what it can of them."""

    allowed = frozenset({"invalid_type", "invalid_value"})

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        if "input" in body and not isinstance(body["input"], str | list):
            body["input"] = str(body["input"])
        if not isinstance(body.get("metadata"), dict):
            body["metadata"] = {}
        if isinstance(body.get("temperature"), str):
            body["temperature"] = 1
        return body


class AssumesModel(HonestDouble):
    """Answers a request without a model with the one that it has."""

    allowed = frozenset({"missing_model"})

    def check_model(self, body: dict[str, Any]) -> None:
        if "model" in body:
            super().check_model(body)


class TakesAnyModel(HonestDouble):
    """Answers for any model with the one that it has (llama.cpp)."""

    def check_model(self, body: dict[str, Any]) -> None:
        return


class NeedsNoInput(HonestDouble):
    """Answers a request that has nothing to answer."""

    allowed = frozenset({"missing_input", "empty_input"})


class FindsNothing(HonestDouble):
    """Answers 400 for a response that it does not have."""

    def find_record(self, response_id: str) -> Record:
        try:
            return super().find_record(response_id)
        except RequestError as error:
            raise RequestError(error.message) from error


# Fields.


class ForgetsFields(HonestDouble):
    """Takes truncation, metadata and store, and repeats its defaults."""

    def echo_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        return super().echo_fields({})


class IgnoresBudget(HonestDouble):
    """Takes max_output_tokens, and goes on to the end."""

    def limit(self, output: list[Item], body: dict[str, Any]) -> list[Item]:
        return output


class IgnoresToolChoice(HonestDouble):
    """Calls a tool when the task names it, whatever tool_choice says."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        named = "with the tool" in str(list_items(body.get("input"))[-1:])
        choice = {"tool_choice": "required" if named else "none"}
        return super().generate(window, instructions, {**body, **choice})


class IgnoresSchema(HonestDouble):
    """Takes text.format, and answers as it likes (llama.cpp's own Responses route)."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        return super().generate(window, instructions, {**body, "text": None})


# Keys and restarts.


class SharesAcrossKeys(HonestDouble):
    """Shows every key what any key stored."""

    def choose_tenant(self, key: str) -> str:
        return ""


class ForbidsOtherKeys(HonestDouble):
    """Answers 403 for what another key stored, so that it can be told from what there is not."""

    def find_record(self, response_id: str) -> Record:
        if response_id not in self.records and any(response_id in kept for kept in self.tenants.values()):
            raise ForbiddenError(f"You may not see '{response_id}'.")
        return super().find_record(response_id)

    def find_conversation(self, conversation_id: str) -> Conversation:
        kept = any(conversation_id in shelf for shelf in self.shelves.values())
        if kept and conversation_id not in self.conversations:
            raise ForbiddenError(f"You may not see '{conversation_id}'.")
        return super().find_conversation(conversation_id)


class ForgetsAtRestart(HonestDouble):
    """Keeps its responses in memory alone."""

    def restart(self) -> None:
        self.tenants.clear()


WIRE_DOUBLES: dict[str, type[HonestDouble]] = {
    "skips-created": SkipsCreated,
    "numbers-from-one": NumbersFromOne,
    "ends-twice": EndsTwice,
    "loses-delta": LosesDelta,
    "changes-ids": ChangesIds,
    "final-differs": FinalDiffers,
    "completes-cut": CompletesCut,
    "bare-calls": BareCalls,
    "errors-without-end": ErrorsWithoutEnd,
    "bare-errors": BareErrors,
    "short-errors": ShortErrors,
    "ignores-unknown-fields": IgnoresUnknownFields,
    "ignores-wrong-values": IgnoresWrongValues,
    "assumes-model": AssumesModel,
    "takes-any-model": TakesAnyModel,
    "needs-no-input": NeedsNoInput,
    "finds-nothing": FindsNothing,
    "forgets-fields": ForgetsFields,
    "ignores-budget": IgnoresBudget,
    "ignores-tool-choice": IgnoresToolChoice,
    "ignores-schema": IgnoresSchema,
    "shares-across-keys": SharesAcrossKeys,
    "forbids-other-keys": ForbidsOtherKeys,
    "forgets-at-restart": ForgetsAtRestart,
}
