"""The faults: each double does one thing wrong, or is honest under one unusual condition.

A docstring says what its server does. None knows a requirement: which ones a fault breaks stands in the
tests.
"""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles.honest import (
    HonestDouble,
    Item,
    Record,
    Scope,
    Send,
    count_item,
    list_items,
    list_outputs,
    read_key,
    send_bytes,
    send_json,
)
from antiphon.protocol.errors import AuthenticationError, NotFoundError, RequestError

#: The doubles with a small window hold this many toy tokens; the short probes stay far below.
OVERFLOW_TOKENS = 700
#: The double that forgets old rounds keeps this many items.
KEPT_ITEMS = 20
#: The key of the double that needs one; no secret.
KEY = "key-of-the-double"


def drop_oldest(window: list[Item]) -> list[Item]:
    """The newest items that fit the small window."""
    kept = list(window)
    while sum(map(count_item, kept)) > OVERFLOW_TOKENS:
        kept.pop(0)
    return kept


class Forgetful(HonestDouble):
    """Drops previous_response_id and store, answers 200, stores nothing, checks no pairing (Ollama 0.34)."""

    def find_parent(self, body: dict[str, Any]) -> Record | None:
        return None

    def check_pairing(self, window: list[Item]) -> None:
        return

    def echo_parent(self, body: dict[str, Any]) -> str | None:
        return None

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        return


class ForgetsWhenStreaming(HonestDouble):
    """Continues a plain request, and drops the history of a streaming one."""

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        return super().build_window(body, None if body.get("stream") else parent, given)


class ForgetsToolCall(HonestDouble):
    """Sends the output of a continued call without the call, and completes an empty answer."""

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        window = super().build_window(body, parent, given)
        self.check_calls_known(window)
        return given if parent and list_outputs(given) else window

    def check_calls_known(self, window: list[Item]) -> None:
        if any(item["type"] != "function_call_output" for item in window):
            super().check_calls_known(window)

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        if all(item["type"] == "function_call_output" for item in window):
            return [self.make_message("")]
        return super().generate(window, instructions, body)


class SharesBranches(HonestDouble):
    """Keeps one growing list for each conversation, so that branches see each other."""

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        parent = self.records.get(body.get("previous_response_id") or "")
        if parent is not None:
            parent.window.extend([*record.given, *record.response["output"]])
            record.window = parent.window
        super().keep(record, body)


class AcceptsUnknownId(HonestDouble):
    """Answers a plain request that continues an id which it does not know."""

    streaming = False

    def find_parent(self, body: dict[str, Any]) -> Record | None:
        if bool(body.get("stream")) is self.streaming:
            return self.records.get(body.get("previous_response_id") or "")
        return super().find_parent(body)


class AcceptsUnknownIdStreaming(AcceptsUnknownId):
    """Answers a streaming request that continues an id which it does not know."""

    streaming = True


class KeepsLastN(HonestDouble):
    """Continues from the newest rounds alone, without a word."""

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        return super().build_window(body, parent, given)[-KEPT_ITEMS:]


class TruncatesSilently(HonestDouble):
    """Drops the oldest items until the prompt fits its window, and says nothing."""

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        return drop_oldest(super().build_window(body, parent, given))


class TruncatesOpenly(TruncatesSilently):
    """Drops the oldest items until the prompt fits its window, and says in each response that it may."""

    def echo_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**super().echo_fields(body), "truncation": "auto"}


class ForgetfulAndTruncates(Forgetful):
    """Forgetful, and drops the oldest items of a long history without a word (Ollama)."""

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        return drop_oldest(super().build_window(body, parent, given))


class Overflows(HonestDouble):
    """Honest, with a small window: refuses a prompt that does not fit."""

    window_tokens = OVERFLOW_TOKENS


class StoresDespiteFalse(HonestDouble):
    """Stores a response that was to be forgotten."""

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        super().keep(record, {**body, "store": True})


class NoEcho(HonestDouble):
    """Continues, and does not say from where."""

    def echo_parent(self, body: dict[str, Any]) -> str | None:
        return None


class AcceptsWrongCallId(HonestDouble):
    """Takes the output of a call that nobody made."""

    def check_calls_known(self, window: list[Item]) -> None:
        return


class AcceptsMissingOutput(HonestDouble):
    """Goes on past a call that nobody answered."""

    def check_calls_answered(self, window: list[Item]) -> None:
        return


class RejectsOwnItems(HonestDouble):
    """Refuses its own output items as input."""

    def check_request(self, body: dict[str, Any]) -> None:
        for index, item in enumerate(list_items(body.get("input"))):
            if "id" in item:
                raise RequestError(
                    "Unknown parameter: 'id'.", param=f"input[{index}].id", code="unknown_parameter"
                )


class EmptyCompleted(HonestDouble):
    """Completes an empty answer when the output budget is small."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        if (body.get("max_output_tokens") or 1000) <= 16:
            return [self.make_message("")]
        return super().generate(window, instructions, body)


class InheritsInstructions(HonestDouble):
    """Carries the instructions of a round into the rounds after it."""

    def find_instructions(self, body: dict[str, Any], parent: Record | None) -> str:
        return (
            super().find_instructions(body, parent)
            or (parent.response["instructions"] if parent else "")
            or ""
        )


class RetrieveDiffers(HonestDouble):
    """Shows another output on GET than it sent."""

    def retrieve(self, record: Record) -> dict[str, Any]:
        return {**record.response, "output": [self.make_message("Something else.")]}


class InputItemsEmpty(HonestDouble):
    """Lists no input items."""

    def list_input_items(self, record: Record) -> list[Item]:
        return []


class DeleteDoesNothing(HonestDouble):
    """Says that a response is deleted, and keeps it."""

    def delete(self, response_id: str) -> None:
        return


class CountsNothing(HonestDouble):
    """Honest, and tells no usage."""

    def count_tokens(self, window: list[Item], instructions: str, body: dict[str, Any]) -> int | None:
        return None


class ForgetfulAndCountsNothing(Forgetful):
    """Forgetful, and tells no usage: only the text can show it."""

    def count_tokens(self, window: list[Item], instructions: str, body: dict[str, Any]) -> int | None:
        return None


class RefusesSampling(HonestDouble):
    """Honest, and refuses temperature and max_output_tokens, as reasoning models do."""

    def check_request(self, body: dict[str, Any]) -> None:
        for name in ("temperature", "max_output_tokens"):
            if name in body:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                raise RequestError(message, param=name)


class Mute(HonestDouble):
    """Honest, with a model that repeats no word; a tool choice that it cannot follow is refused."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        if (body.get("text") or {}).get("format"):
            return super().generate(window, instructions, body)
        return [self.make_message("I see.")]

    def check_request(self, body: dict[str, Any]) -> None:
        if body.get("tool_choice", "auto") not in ("auto", "none"):
            raise RequestError("This model cannot call tools.", param="tool_choice")


class MuteAndCountsNothing(Mute):
    """Honest, with a mute model and no usage: nothing can be decided about its memory."""

    def count_tokens(self, window: list[Item], instructions: str, body: dict[str, Any]) -> int | None:
        return None


class BreaksStreams(HonestDouble):
    """Ends every stream before its terminal event."""

    def stream(self, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return itertools.islice(super().stream(response), 3)


class NeedsKey(HonestDouble):
    """Honest, and answers 401 with what it got instead of its key."""

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        sent = read_key(scope)
        if sent != KEY:
            raise AuthenticationError(f"Incorrect API key provided: {sent!r}.")
        await super().route(scope, raw, send)


class Garbage(HonestDouble):
    """Answers every request with a page that is no JSON."""

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        await send_bytes(send, 200, b"text/html", b"<html>It works!</html>")


class WrongShapes(HonestDouble):
    """Answers in JSON whose fields have the wrong types."""

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        value = {"id": 7, "status": [], "output": "text", "usage": {"input_tokens": "many"}, "error": True}
        await send_json(send, 200, value)


class Silent(HonestDouble):
    """Takes a request and never answers."""

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        await asyncio.Event().wait()


class Unavailable(HonestDouble):
    """Answers 503: its model is not loaded."""

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        error = {"message": "The model is loading.", "type": "server_error", "param": None, "code": None}
        await send_json(send, 503, {"error": error})


class NoSuchModel(HonestDouble):
    """Answers 404: it does not have the model."""

    def check_request(self, body: dict[str, Any]) -> None:
        raise NotFoundError(f"model '{body.get('model')}' not found", param="model", code="model_not_found")


STATE_DOUBLES: dict[str, type[HonestDouble]] = {
    "honest": HonestDouble,
    "forgetful": Forgetful,
    "forgets-when-streaming": ForgetsWhenStreaming,
    "forgets-tool-call": ForgetsToolCall,
    "shares-branches": SharesBranches,
    "accepts-unknown-id": AcceptsUnknownId,
    "accepts-unknown-id-streaming": AcceptsUnknownIdStreaming,
    "keeps-last-n": KeepsLastN,
    "truncates-silently": TruncatesSilently,
    "truncates-openly": TruncatesOpenly,
    "forgetful-truncates": ForgetfulAndTruncates,
    "overflows": Overflows,
    "stores-despite-false": StoresDespiteFalse,
    "no-echo": NoEcho,
    "accepts-wrong-call-id": AcceptsWrongCallId,
    "accepts-missing-output": AcceptsMissingOutput,
    "rejects-own-items": RejectsOwnItems,
    "empty-completed": EmptyCompleted,
    "inherits-instructions": InheritsInstructions,
    "retrieve-differs": RetrieveDiffers,
    "input-items-empty": InputItemsEmpty,
    "delete-does-nothing": DeleteDoesNothing,
    "counts-nothing": CountsNothing,
    "forgetful-counts-nothing": ForgetfulAndCountsNothing,
    "refuses-sampling": RefusesSampling,
    "mute": Mute,
    "mute-counts-nothing": MuteAndCountsNothing,
    "breaks-streams": BreaksStreams,
    "needs-key": NeedsKey,
    "garbage": Garbage,
    "wrong-shapes": WrongShapes,
    "silent": Silent,
    "unavailable": Unavailable,
    "no-such-model": NoSuchModel,
}
