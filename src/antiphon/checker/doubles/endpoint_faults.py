"""Faults of conversations, of background work and of the other endpoints, one each.

A docstring says what its server does. None knows a requirement.
"""

from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles.answering import Record
from antiphon.checker.doubles.conversing import Conversation
from antiphon.checker.doubles.honest import HonestDouble, Item
from antiphon.checker.doubles.working import Job
from antiphon.protocol.errors import NotFoundError, RequestError

Event = dict[str, Any]


# Conversations.


class DropsFirstItems(HonestDouble):
    """Makes a conversation without the items that it was to begin with."""

    def create_conversation(self, body: dict[str, Any]) -> Any:
        return super().create_conversation({**body, "items": []})


class ShowsOtherConversation(HonestDouble):
    """Shows a conversation with another time than it was made at."""

    def read_conversation(self, conversation: Conversation) -> Any:
        return {**conversation.object, "created_at": 1}


class MergesMetadata(HonestDouble):
    """Adds new metadata to the old."""

    def update_metadata(self, conversation: Conversation, metadata: dict[str, str]) -> None:
        conversation.metadata = {**conversation.metadata, **metadata}


class KeepsDeletedConversation(HonestDouble):
    """Says that a conversation is deleted, and keeps it."""

    def drop_conversation(self, conversation: Conversation) -> None:
        return


class AddsBackwards(HonestDouble):
    """Adds new items in the wrong order."""

    def add_items(self, conversation: Conversation, items: list[Item]) -> list[Item]:
        return super().add_items(conversation, items[::-1])


class ListsOldestFirst(HonestDouble):
    """Lists items oldest first, whatever order is asked for."""

    def order_items(self, items: list[Item], order: str) -> list[Item]:
        return items


class FindsFirstItem(HonestDouble):
    """Shows the first item of a conversation for any id."""

    def find_item(self, conversation: Conversation, item_id: str) -> Item:
        return conversation.items[0] if conversation.items else super().find_item(conversation, item_id)


class LeavesOutputs(HonestDouble):
    """Deletes a call, and leaves its output alone."""

    def find_pair(self, conversation: Conversation, item: Item) -> list[Item]:
        return [item]


class AddsTwice(HonestDouble):
    """Adds an item that stands in the conversation already."""

    def check_not_there(self, conversation: Conversation, items: list[Item]) -> None:
        return


class CopiesItems(HonestDouble):
    """Adds an item that is stored already with the content that was sent along."""

    def link(self, item: Item) -> Item:
        return item


class TakesAnyItems(HonestDouble):
    """Takes no items to add, and any number of them."""

    def check_new_items(self, conversation: Conversation, items: Any) -> None:
        self.check_not_there(conversation, items or [])

    def route_conversations(
        self, method: str, rest: list[str], body: dict[str, Any], query: dict[str, str]
    ) -> Any:
        return super().route_conversations(method, rest, {"items": [], **body}, query)


class ForgetsConversations(HonestDouble):
    """Takes a conversation, names it in the response, and shows the model nothing of it."""

    def find_context(self, body: dict[str, Any], parent: Record | None) -> list[Item]:
        return [] if self.find_named(body) else super().find_context(body, parent)


class NeverAppends(HonestDouble):
    """Adds nothing of a response to its conversation."""

    def append_round(self, conversation: Conversation, record: Record, body: dict[str, Any]) -> None:
        return


class AppendsDespiteFalse(HonestDouble):
    """Adds a response with store:false to its conversation."""

    def append_round(self, conversation: Conversation, record: Record, body: dict[str, Any]) -> None:
        super().append_round(conversation, record, {})


class NeverLocks(HonestDouble):
    """Runs any number of responses in a conversation at once."""

    def check_lock(self, conversation: Conversation) -> None:
        return


class KeepsBranches(HonestDouble):
    """Says of a response that continues another by id that it is in that one's conversation."""

    def finish(self, response: dict[str, Any]) -> dict[str, Any]:
        parent = self.records.get(response["previous_response_id"] or "")
        if parent is not None and "conversation" in parent.response:
            return {**response, "conversation": parent.response["conversation"]}
        return response


class FindsAnyConversation(HonestDouble):
    """Makes a conversation of any id that it is asked for."""

    def find_conversation(self, conversation_id: str) -> Conversation:
        return self.conversations.setdefault(conversation_id, Conversation(conversation_id, {}, []))


# Background work.


class AnswersAtOnce(HonestDouble):
    """Takes background, and answers when all is done."""

    def begin(self, job: Job) -> dict[str, Any]:
        self.end(job)
        return job.response


class WorksUnstored(HonestDouble):
    """Takes background work with store:false."""

    allowed = frozenset({"background"})

    def start_job(self, body: dict[str, Any]) -> Job:
        return super().start_job({**body, "store": True})


class CancelsNothing(HonestDouble):
    """Says yes to a cancellation, and goes on."""

    def cancel(self, job: Job) -> dict[str, Any]:
        return self.show_job(job)


class CancelsAnything(HonestDouble):
    """Takes a cancellation of what has ended, or never was in the background."""

    def refuse_cancel(self, record: Record) -> Any:
        return record.response

    def cancel(self, job: Job) -> dict[str, Any]:
        job.status = job.status if not job.is_running else "cancelled"
        self.release(job)
        return self.show_job(job)


class StreamsAnything(HonestDouble):
    """Streams any stored response again."""

    def refuse_stream(self, record: Record) -> Iterator[Event]:
        return self.number(self.stream(record.response))


class EndsJobsTwice(HonestDouble):
    """Sends the terminal event of a background stream twice."""

    def stream_job(self, job: Job) -> Iterator[Event]:
        events = list(super().stream_job(job))
        return iter([*events, events[-1]])


class ReplaysWhole(HonestDouble):
    """Streams again from the beginning, whatever starting_after says."""

    def choose_tail(self, events: list[Event], after: int) -> list[Event]:
        return events


class LosesOneEvent(HonestDouble):
    """Streams again one event too late."""

    def choose_tail(self, events: list[Event], after: int) -> list[Event]:
        return events[after + 2 :] if after >= 0 else events


class ForgetsJobs(HonestDouble):
    """Does not continue a response from the background."""

    def find_parent(self, body: dict[str, Any]) -> Record | None:
        if body.get("previous_response_id") in self.jobs:
            body = {**body, "previous_response_id": "resp_gone"}
        return super().find_parent(body)


# Other endpoints.


class CountsOneMore(HonestDouble):
    """Counts one token more than it will use."""

    def count_input(self, body: dict[str, Any]) -> int | None:
        return (super().count_input(body) or 0) + 1


class CountsAnything(HonestDouble):
    """Takes any parameter in a request for a count."""

    def check_count(self, body: dict[str, Any]) -> None:
        return


class BareModels(HonestDouble):
    """Lists its models without time and owner."""

    def list_models(self) -> list[dict[str, Any]]:
        return [{"id": model["id"], "object": "model"} for model in super().list_models()]


class FindsAnyModel(HonestDouble):
    """Shows a model for any name."""

    def find_model(self, name: str) -> dict[str, Any]:
        return {**self.list_models()[0], "id": name}


class Hollow(HonestDouble):
    """Answers 200 and an empty object on every path that it does not have."""

    takes_sockets = False

    def answer_unknown(self, method: str, path: str) -> Any:
        return {}

    def answer_method(self, method: str, path: str) -> Any:
        return {}

    def answer_upgrade(self) -> Any:
        return {}

    def find_model(self, name: str) -> dict[str, Any]:
        return {}


class Unwell(HonestDouble):
    """Says of itself that it is neither well nor ready."""

    def answer_unknown(self, method: str, path: str) -> Any:
        if path in ("/health", "/ready"):
            error = RequestError("The model is not loaded.")
            error.status = 503
            raise error
        return super().answer_unknown(method, path)


class GuessesJson(HonestDouble):
    """Answers a body that is no JSON with what it can make of it."""

    def read_json(self, raw: bytes) -> dict[str, Any]:
        try:
            return super().read_json(raw)
        except RequestError:
            return {"model": "toy", "input": raw.decode(errors="replace")}


class FindsAnyReference(HonestDouble):
    """Takes a reference to an item that there is not as an empty message."""

    def resolve(self, item: Item) -> Item:
        try:
            return super().resolve(item)
        except NotFoundError:
            return {"type": "message", "role": "user", "content": []}


class TakesAnyPage(HonestDouble):
    """Takes any limit, order and cursor of a list for its defaults."""

    def make_page(self, items: list[Item], query: dict[str, str]) -> dict[str, Any]:
        try:
            return super().make_page(items, query)
        except RequestError:
            return super().make_page(items, {})


class FindsAnyResponse(HonestDouble):
    """Shows an empty response for any id."""

    def find_record(self, response_id: str) -> Record:
        try:
            return super().find_record(response_id)
        except NotFoundError:
            return Record(
                [], [], {"id": response_id, "object": "response", "status": "completed", "output": []}
            )

    def delete(self, response_id: str) -> None:
        self.records.pop(response_id, None)

    def refuse_cancel(self, record: Record) -> Any:
        return super().refuse_cancel(record) if record.given else record.response


class LacksKeys(HonestDouble):
    """Leaves out of a response what it has no use for (many servers)."""

    def finish(self, response: dict[str, Any]) -> dict[str, Any]:
        kept = ("top_logprobs", "service_tier", "safety_identifier")
        return {key: value for key, value in response.items() if key not in kept}


class OddPhase(HonestDouble):
    """Gives each message a phase that is none."""

    def make_message(self, text: str) -> Item:
        return {**super().make_message(text), "phase": None}


class NeverCallsItself(HonestDouble):
    """Calls a tool where it is forced to, and never of its own accord."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        if body.get("tool_choice", "auto") == "auto":
            body = {**body, "tool_choice": "none"}
        return super().generate(window, instructions, body)


class ReasonsOpenly(HonestDouble):
    """Reasons, and does not seal what it reasoned though it is asked to."""

    is_reasoning = False

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        self.is_reasoning = "reasoning" in body
        return {**body, "include": []} if self.is_reasoning else body

    def check_rules(self, body: dict[str, Any]) -> None:
        super().check_rules({name: value for name, value in body.items() if name != "reasoning"})

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        output = super().generate(window, instructions, body)
        if not self.is_reasoning:
            return output
        return [
            {"type": "reasoning", "id": self.make_id("rs"), "summary": [], "status": "completed"},
            *output,
        ]

    def stream_item(self, index: int, item: Item) -> Iterator[Event]:
        if item["type"] != "reasoning":
            return super().stream_item(index, item)
        return iter(
            [
                {"type": f"response.output_item.{kind}", "output_index": index, "item": item}
                for kind in ("added", "done")
            ]
        )


class IgnoresInstructions(HonestDouble):
    """Repeats the instructions, and does not show them to its model."""

    def find_instructions(self, body: dict[str, Any], parent: Record | None) -> str:
        return ""


class CallsInParallel(HonestDouble):
    """Calls two tools at once, whatever parallel_tool_calls says."""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        output = super().generate(window, instructions, body)
        is_call = len(body.get("tools") or []) > 1 and output[0]["type"] == "function_call"
        return [*output, *super().generate(window, instructions, body)] if is_call else output


class CallsOtherTools(HonestDouble):
    """Calls the first tool, whichever the choice allows."""

    def choose_tool(self, tools: list[Item], choice: Any) -> Item:
        return tools[0]


ENDPOINT_DOUBLES: dict[str, type[HonestDouble]] = {
    "drops-first-items": DropsFirstItems,
    "shows-other-conversation": ShowsOtherConversation,
    "merges-metadata": MergesMetadata,
    "keeps-deleted-conversation": KeepsDeletedConversation,
    "adds-backwards": AddsBackwards,
    "lists-oldest-first": ListsOldestFirst,
    "finds-first-item": FindsFirstItem,
    "leaves-outputs": LeavesOutputs,
    "adds-twice": AddsTwice,
    "copies-items": CopiesItems,
    "takes-any-items": TakesAnyItems,
    "forgets-conversations": ForgetsConversations,
    "never-appends": NeverAppends,
    "appends-despite-false": AppendsDespiteFalse,
    "never-locks": NeverLocks,
    "keeps-branches": KeepsBranches,
    "finds-any-conversation": FindsAnyConversation,
    "answers-at-once": AnswersAtOnce,
    "works-unstored": WorksUnstored,
    "cancels-nothing": CancelsNothing,
    "cancels-anything": CancelsAnything,
    "streams-anything": StreamsAnything,
    "ends-jobs-twice": EndsJobsTwice,
    "replays-whole": ReplaysWhole,
    "loses-one-event": LosesOneEvent,
    "forgets-jobs": ForgetsJobs,
    "counts-one-more": CountsOneMore,
    "counts-anything": CountsAnything,
    "bare-models": BareModels,
    "finds-any-model": FindsAnyModel,
    "hollow": Hollow,
    "unwell": Unwell,
    "guesses-json": GuessesJson,
    "finds-any-reference": FindsAnyReference,
    "takes-any-page": TakesAnyPage,
    "finds-any-response": FindsAnyResponse,
    "lacks-keys": LacksKeys,
    "odd-phase": OddPhase,
    "never-calls-itself": NeverCallsItself,
    "reasons-openly": ReasonsOpenly,
    "ignores-instructions": IgnoresInstructions,
    "calls-in-parallel": CallsInParallel,
    "calls-other-tools": CallsOtherTools,
}
