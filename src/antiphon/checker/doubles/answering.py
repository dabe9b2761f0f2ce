"""The part of the honest double that answers: it gathers the window, has the toy model answer it, keeps the round.

Its state is plain lists; its toy model repeats the words its window tells, calls the tool it is offered and
counts words. It knows no route. Invariant: each method under "seams" is one thing that a server can get wrong.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.checker.doubles import rules
from antiphon.checker.doubles.rules import RULES, Item, fill_schema, list_items
from antiphon.checker.doubles.toy import (
    answer,
    count_item,
    is_failing,
    is_refused,
    list_outputs,
    read_text,
    stream_item,
    wants_tool,
)
from antiphon.protocol.errors import NotFoundError, RequestError

MODEL = "toy"
#: Every model, by which the same answers are given.
MODELS = (MODEL, "toy-again")
#: What a response that fails says.
FAILURE = {"code": "server_error", "message": "The toy broke."}


class Record(msgspec.Struct):
    """One stored response: its own input, its whole window with the output, and the object that was sent."""

    given: list[Item]
    window: list[Item]
    response: dict[str, Any]


class AnsweringDouble:
    """Keeps every round, counts what it shows its model, and refuses what it does not know."""

    #: What the toy model's window holds.
    window_tokens = 30_000
    #: Rules that are not kept.
    allowed: frozenset[str] = frozenset()

    def __init__(self) -> None:
        #: What each key has stored.
        self.tenants: dict[str, dict[str, Record]] = {}
        #: Those of the key that is being answered.
        self.records: dict[str, Record] = self.tenants.setdefault("", {})
        self._ids = itertools.count(1)
        #: What was answered last, stored or not.
        self.last: Record | None = None

    # The seams: each fault replaces one of them.

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request as this server reads it: as it came."""
        return body

    def check_request(self, body: dict[str, Any]) -> None:
        """Refuses what this server does not take."""

    def check_rules(self, body: dict[str, Any]) -> None:
        """Refuses what the API does not have, and what of it is not done here."""
        for name, check in RULES.items():
            if name not in self.allowed:
                check(body)

    def check_model(self, body: dict[str, Any]) -> None:
        """Refuses a model that is not here."""
        if body.get("model") not in MODELS:
            raise RequestError(
                f"The requested model '{body.get('model')}' does not exist.",
                param="model",
                code="model_not_found",
            )

    def choose_tenant(self, key: str) -> str:
        """Whose records a key sees."""
        return key

    def restart(self) -> None:
        """What a restart of this server does to its state: nothing."""

    def find_parent(self, body: dict[str, Any]) -> Record | None:
        """The record that the request continues, None for a root."""
        parent_id = body.get("previous_response_id")
        if parent_id is None:
            return None
        if parent_id not in self.records:
            raise RequestError(
                f"Previous response with id '{parent_id}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self.records[parent_id]

    def find_context(self, body: dict[str, Any], parent: Record | None) -> list[Item]:
        """What the request continues: its parent's window."""
        return list(parent.window) if parent else []

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        """What the model sees: what came before, then the new items."""
        return [*self.find_context(body, parent), *given]

    def open_window(self, window: list[Item]) -> list[Item]:
        """The window with what stands for more than itself opened: nothing does."""
        return window

    def list_kept(self, given: list[Item]) -> list[Item]:
        """What of the request's items is kept with its response: all."""
        return given

    def check_room(self, window: list[Item]) -> None:
        """Refuses what the toy model's window does not hold."""
        if sum(map(count_item, window)) > self.window_tokens:
            raise RequestError(
                "Your input exceeds the context window of this model.",
                param="input",
                code="context_length_exceeded",
            )

    def check_pairing(self, window: list[Item]) -> None:
        """Every output has its call and every call its output."""
        self.check_calls_known(window)
        self.check_calls_answered(window)

    def check_calls_known(self, window: list[Item]) -> None:
        """Refuses an output whose call is not in the window."""
        calls = {item["call_id"] for item in window if item.get("type") == "function_call"}
        for call_id in list_outputs(window):
            if call_id not in calls:
                raise RequestError(
                    f"No tool call found for function call output with call_id {call_id}.", param="input"
                )

    def check_calls_answered(self, window: list[Item]) -> None:
        """Refuses a window that leaves a call without its output."""
        outputs = list_outputs(window)
        for item in window:
            if item.get("type") == "function_call" and item["call_id"] not in outputs:
                raise RequestError(
                    f"No tool output found for function call {item['call_id']}.", param="input"
                )

    def find_instructions(self, body: dict[str, Any], parent: Record | None) -> str:
        """The instructions of this request alone."""
        return body.get("instructions") or ""

    def generate(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        """The toy model's output items for this window."""
        tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
        if tools and (choice not in ("none", "auto") or (choice == "auto" and wants_tool(window))):
            return [self._make_call(self.choose_tool(tools, choice))]
        format_ = (body.get("text") or {}).get("format") or {}
        if format_.get("type") in ("json_schema", "json_object"):
            return [self.make_message(fill_schema(format_.get("schema") or {}))]
        if is_refused(window):
            part = {"type": "refusal", "refusal": "I will not tell you that."}
            return [{**self.make_message(""), "content": [part]}]
        return [self.make_message(answer(window, instructions))]

    def produce(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        """The output items: what the toy model says."""
        return self.generate(window, instructions, body)

    def choose_tool(self, tools: list[Item], choice: Any) -> Item:
        """The tool that is called: the first one that the choice allows."""
        allowed = choice.get("tools", [choice]) if isinstance(choice, dict) else []
        names = [tool.get("name") for tool in allowed]
        return next((tool for tool in tools if tool.get("name") in names), tools[0])

    def limit(self, output: list[Item], body: dict[str, Any]) -> list[Item]:
        """The output within its budget; what was cut is incomplete."""
        budget = body.get("max_output_tokens")
        if budget is None or sum(map(count_item, output)) <= budget or output[-1]["type"] != "message":
            return output
        text = " ".join(read_text(output[-1]).split()[: budget - count_item(self.make_message(""))])
        return [*output[:-1], {**self.make_message(text), "status": "incomplete"}]

    def echo_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the response repeats of the request."""
        text = body.get("text") or {}
        return {
            "store": body.get("store", True),
            "truncation": body.get("truncation") or "disabled",
            "metadata": body.get("metadata") or {},
            "max_output_tokens": body.get("max_output_tokens"),
            "temperature": body.get("temperature", 1.0),
            "top_p": body.get("top_p", 1.0),
            "top_logprobs": body.get("top_logprobs") or 0,
            "text": {"format": {"type": "text"}, "verbosity": "medium", **text},
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "instructions": body.get("instructions"),
        }

    def tell_cut(self, output: list[Item]) -> dict[str, Any]:
        """Status and details of the response: whether its output was cut, or there is none."""
        if not output:
            return {"status": "failed", "incomplete_details": None, "error": FAILURE, "completed_at": None}
        if any(item.get("status") == "incomplete" for item in output):
            return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return {"status": "completed", "incomplete_details": None}

    def count_tokens(self, window: list[Item], instructions: str, body: dict[str, Any]) -> int | None:
        """Toy tokens of the prompt: its words, and four for each item."""
        tools = msgspec.json.encode(body.get("tools") or []).decode()
        return len(instructions.split()) + len(tools.split()) + sum(count_item(item) for item in window)

    def make_usage(self, prompt: int | None, output: list[Item]) -> dict[str, Any] | None:
        """The usage object; None where nothing was counted."""
        if prompt is None:
            return None
        generated = sum(count_item(item) for item in output)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + generated,
        }

    def echo_parent(self, body: dict[str, Any]) -> str | None:
        """What the response says about the round that it continues."""
        return body.get("previous_response_id")

    def finish(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response as it is sent and kept."""
        return response

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        """Stores the record unless the request says not to."""
        if body.get("store", True) is not False:
            self.records[record.response["id"]] = record

    def find_record(self, response_id: str) -> Record:
        """The stored response of that id."""
        if response_id not in self.records:
            raise NotFoundError(f"Response with id '{response_id}' not found.")
        return self.records[response_id]

    def retrieve(self, record: Record) -> dict[str, Any]:
        """The stored response as GET shows it."""
        return record.response

    def list_input_items(self, record: Record) -> list[Item]:
        """The request's own input items."""
        return record.given

    def delete(self, response_id: str) -> None:
        """Forgets one response."""
        del self.records[response_id]

    def stream(self, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a finished response, in the order of the protocol."""
        opened = self.open_response(response, "in_progress")
        yield {"type": "response.created", "response": opened}
        yield {"type": "response.in_progress", "response": opened}
        for index, item in enumerate(response["output"]):
            yield from self.stream_item(index, item)
        if response["status"] == "failed":
            yield {"type": "error", "error": {**FAILURE, "type": "server_error", "param": None}}
        yield {"type": f"response.{response['status']}", "response": response}

    def stream_item(self, index: int, item: Item) -> Iterator[dict[str, Any]]:
        """The events of one item, from added to done."""
        return stream_item(index, item)

    def number(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The events with their numbers."""
        return ({**event, "sequence_number": number} for number, event in enumerate(events))

    # The machinery: the same for every double.

    def open_response(self, response: dict[str, Any], status: str) -> dict[str, Any]:
        """The response as it was before its end."""
        return {**response, "status": status, "output": [], "usage": None, "completed_at": None}

    def gather(self, body: dict[str, Any]) -> tuple[Record | None, list[Item], list[Item], str]:
        """What a request is about, checked: its parent, its items, its window, its instructions."""
        parent = self.find_parent(body)
        given = [self.resolve(item) for item in list_items(body.get("input"))]
        window = self.open_window(self.build_window(body, parent, given))
        self.check_room(window)
        self.check_pairing(window)
        return parent, given, window, self.find_instructions(body, parent)

    def resolve(self, item: Item) -> Item:
        """The item, or the stored one to which it refers."""
        if item.get("type") != "item_reference":
            return item
        for record in self.records.values():
            for stored in (*record.given, *record.response["output"]):
                if stored.get("id") == item.get("id"):
                    found: Item = stored
                    return found
        raise rules.find_item_missing(item.get("id"))

    def check(self, body: dict[str, Any]) -> None:
        """Every check that needs no state."""
        self.check_rules(body)
        self.check_request(body)
        self.check_model(body)

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request carried out: check, gather, generate, keep."""
        self.check(body)
        _, given, window, instructions = self.gather(body)
        output = [] if is_failing(window) else self.limit(self.produce(window, instructions, body), body)
        response: dict[str, Any] = self.finish(self.make_response(body, window, instructions, output))
        given = [self.name_item(item) for item in self.list_kept(given)]
        self.last = Record(given, [*window, *output], response)
        self.keep(self.last, body)
        return response

    def name_item(self, item: Item) -> Item:
        """The item with an id of its own, and its text as a part."""
        prefix = "msg" if item.get("type") == "message" else "item"
        named = {"id": self.make_id(prefix), "status": "completed", **item}
        if isinstance(item.get("content"), str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            named["content"] = [{"type": kind, "text": item["content"]}]
        return named

    def make_id(self, prefix: str) -> str:
        """A fresh id."""
        return f"{prefix}_{next(self._ids):032x}"

    def make_response(
        self, body: dict[str, Any], window: list[Item], instructions: str, output: list[Item]
    ) -> dict[str, Any]:
        return {
            "id": self.make_id("resp"),
            "object": "response",
            "created_at": 0,
            "completed_at": 0,
            "background": bool(body.get("background")),
            "model": MODEL,
            "previous_response_id": self.echo_parent(body),
            "output": output,
            "error": None,
            **self.tell_cut(output),
            **self.echo_fields(body),
            "tools": [{"description": None, "strict": False, **tool} for tool in body.get("tools") or []],
            "tool_choice": body.get("tool_choice", "auto"),
            "max_tool_calls": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "reasoning": None,
            "service_tier": "default",
            "safety_identifier": None,
            "prompt_cache_key": None,
            "usage": self.make_usage(self.count_tokens(window, instructions, body), output),
        }

    def make_message(self, text: str) -> Item:
        """A message of the toy model's."""
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {
            "type": "message",
            "id": self.make_id("msg"),
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }

    def _make_call(self, tool: dict[str, Any]) -> Item:
        names = (tool.get("parameters") or {}).get("properties", {})
        number = next(self._ids)
        return {
            "type": "function_call",
            "id": f"fc_{number:032x}",
            "call_id": f"call_{number:024x}",
            "name": tool.get("name", ""),
            "arguments": msgspec.json.encode(dict.fromkeys(names, "door")).decode(),
            "status": "completed",
        }
