"""The honest double: a tiny Responses server that keeps every round.

Its state is plain lists; its toy model repeats the words its window tells, calls the tool it is offered and
counts words. It knows no socket: it is an ASGI application. Invariant: it passes every requirement, and each
method under "seams" is one thing that a server can get wrong.
"""

import itertools
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from antiphon.checker.doubles.fields import check_known, check_required, check_values, fill_schema
from antiphon.protocol.errors import NotFoundError, RequestError

Item = dict[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MODEL = "toy"

_WORD = re.compile(r"(?:word|name) is (\w+)", re.IGNORECASE)
_QUESTION = re.compile(r"\bwords?\b.*\?|answer with", re.IGNORECASE | re.DOTALL)
_STORY = re.compile(r"\bvery long story\b", re.IGNORECASE)


class Record(msgspec.Struct):
    """One stored response: its own input, its whole window with the output, and the object that was sent."""

    given: list[Item]
    window: list[Item]
    response: dict[str, Any]


class HonestDouble:
    """Keeps every round, counts what it shows its model, and refuses what it does not know."""

    #: What the toy model's window holds.
    window_tokens = 30_000

    def __init__(self) -> None:
        #: What each key has stored.
        self.tenants: dict[str, dict[str, Record]] = {}
        #: Those of the key that is being answered.
        self.records: dict[str, Record] = self.tenants.setdefault("", {})
        self._ids = itertools.count(1)

    # The seams: each fault below replaces one of them.

    def check_request(self, body: dict[str, Any]) -> None:
        """Refuses what this server does not take."""

    def check_required(self, body: dict[str, Any]) -> None:
        """Refuses a request without model or input."""
        check_required(body)

    def check_known(self, body: dict[str, Any]) -> None:
        """Refuses a parameter that the API does not have."""
        check_known(body)

    def check_values(self, body: dict[str, Any]) -> None:
        """Refuses a value of a wrong type, or one that the API does not have."""
        check_values(body)

    def check_model(self, body: dict[str, Any]) -> None:
        """Refuses a model that is not here."""
        if body.get("model") != MODEL:
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

    def make_error(self, error: RequestError) -> Any:
        """The body of a refusal."""
        return {"error": error.to_object()}

    async def refuse(self, send: Send, error: RequestError, stream: bool) -> None:
        """Sends a refusal."""
        await send_json(send, error.status, self.make_error(error))

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

    def build_window(self, body: dict[str, Any], parent: Record | None, given: list[Item]) -> list[Item]:
        """What the model sees: the parent's window, then the new items."""
        return [*(parent.window if parent else []), *given]

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
        if tools and choice != "none" and choice != "auto":
            return [self._make_call(tools[0])]
        format_ = (body.get("text") or {}).get("format") or {}
        if format_.get("type") == "json_schema":
            return [self.make_message(fill_schema(format_["schema"]))]
        return [self.make_message(_answer(window, instructions))]

    def limit(self, output: list[Item], body: dict[str, Any]) -> list[Item]:
        """The output within its budget; what was cut is incomplete."""
        budget = body.get("max_output_tokens")
        if budget is None or sum(map(count_item, output)) <= budget or output[-1]["type"] != "message":
            return output
        text = " ".join(_read_text(output[-1]).split()[: budget - count_item(self.make_message(""))])
        return [*output[:-1], {**self.make_message(text), "status": "incomplete"}]

    def echo_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the response repeats of the request."""
        return {
            "store": body.get("store", True),
            "truncation": body.get("truncation") or "disabled",
            "metadata": body.get("metadata") or {},
            "max_output_tokens": body.get("max_output_tokens"),
        }

    def tell_cut(self, output: list[Item]) -> dict[str, Any]:
        """Status and details of the response: whether its output was cut."""
        if any(item["status"] == "incomplete" for item in output):
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
        opened = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
        yield {"type": "response.created", "response": opened}
        yield {"type": "response.in_progress", "response": opened}
        for index, item in enumerate(response["output"]):
            yield from self.stream_item(index, item)
        yield {"type": f"response.{response['status']}", "response": response}

    def stream_item(self, index: int, item: Item) -> Iterator[dict[str, Any]]:
        """The events of one item, from added to done."""
        return stream_item(index, item)

    def number(self, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The events with their numbers."""
        return ({**event, "sequence_number": number} for number, event in enumerate(events))

    # The machinery: the same for every double.

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request carried out: check, gather, generate, keep."""
        self.check_required(body)
        self.check_known(body)
        self.check_values(body)
        self.check_request(body)
        self.check_model(body)
        parent = self.find_parent(body)
        given = list_items(body.get("input"))
        window = self.build_window(body, parent, given)
        self.check_room(window)
        self.check_pairing(window)
        instructions = self.find_instructions(body, parent)
        output = self.limit(self.generate(window, instructions, body), body)
        response = self._make_response(body, window, instructions, output)
        self.keep(Record(given, [*window, *output], response), body)
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        raw = await _read_body(receive)
        try:
            await self.route(scope, raw, send)
        except RequestError as error:
            await self.refuse(send, error, b'"stream":true' in raw)

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        """Answers one HTTP request."""
        method, parts = scope["method"], scope["path"].strip("/").split("/")
        self.records = self.tenants.setdefault(self.choose_tenant(read_key(scope)), {})
        if parts[-1] == "models" and method == "GET":
            await send_json(send, 200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif parts[-1] == "responses" and method == "POST":
            body = msgspec.json.decode(raw)
            response = self.respond(body)
            if body.get("stream"):
                await send_events(send, self.number(self.stream(response)))
            else:
                await send_json(send, 200, response)
        elif parts[-1] == "restart" and method == "POST":
            self.restart()
            await send_json(send, 200, {})
        else:
            await send_json(send, 200, self._route_stored(method, parts))

    def _route_stored(self, method: str, parts: list[str]) -> Any:
        place = parts.index("responses") if "responses" in parts else len(parts)
        response_id, rest = (parts[place + 1 : place + 2] or [""])[0], parts[place + 2 :]
        record = self.find_record(response_id)
        if method == "DELETE" and not rest:
            self.delete(response_id)
            return {"id": response_id, "object": "response", "deleted": True}
        if rest == ["input_items"]:
            data = self.list_input_items(record)
            return {"object": "list", "data": data, "first_id": None, "last_id": None, "has_more": False}
        return self.retrieve(record)

    def _make_response(
        self, body: dict[str, Any], window: list[Item], instructions: str, output: list[Item]
    ) -> dict[str, Any]:
        return {
            "id": f"resp_{next(self._ids):032x}",
            "object": "response",
            "created_at": 0,
            "completed_at": 0,
            "model": MODEL,
            "previous_response_id": self.echo_parent(body),
            "instructions": body.get("instructions"),
            "output": output,
            "error": None,
            **self.tell_cut(output),
            **self.echo_fields(body),
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice", "auto"),
            "parallel_tool_calls": True,
            "usage": self.make_usage(self.count_tokens(window, instructions, body), output),
        }

    def make_message(self, text: str) -> Item:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {
            "type": "message",
            "id": f"msg_{next(self._ids):032x}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }

    def _make_call(self, tool: dict[str, Any]) -> Item:
        names = tool.get("parameters", {}).get("properties", {})
        number = next(self._ids)
        return {
            "type": "function_call",
            "id": f"fc_{number:032x}",
            "call_id": f"call_{number:024x}",
            "name": tool["name"],
            "arguments": msgspec.json.encode(dict.fromkeys(names, "door")).decode(),
            "status": "completed",
        }


# The toy model's reading of a window.


def list_items(given: Any) -> list[Item]:
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [{"type": "message", **item} for item in given]


def list_outputs(window: list[Item]) -> list[str]:
    return [item["call_id"] for item in window if item.get("type") == "function_call_output"]


def _read_text(item: Item) -> str:
    if item["type"] == "function_call":
        return f"{item['name']} {item['arguments']}"
    content = item.get("output") if item["type"] == "function_call_output" else item.get("content")
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content or [])


def count_item(item: Item) -> int:
    return 4 + len(_read_text(item).split())


def _answer(window: list[Item], instructions: str) -> str:
    told = [instructions, *(_read_text(item) for item in window if item.get("role") != "assistant")]
    words = [word for text in told for word in _WORD.findall(text)]
    last = window[-1] if window else {"type": "message", "content": ""}
    if _STORY.search(_read_text(last)):
        return " ".join(["Once upon a time there was a lighthouse."] * 20)
    asked = last["type"] == "function_call_output" or _QUESTION.search(_read_text(last))
    if not asked:
        return "Noted."
    return " ".join(dict.fromkeys(words)) or "I was told no word."


def stream_item(index: int, item: Item) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "function_call":
        yield _added(index, {**item, "status": "in_progress", "arguments": ""})
        args = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **place, "delta": args}
        yield {
            "type": "response.function_call_arguments.done",
            **place,
            "name": item["name"],
            "arguments": args,
        }
    else:
        yield _added(index, {**item, "status": "in_progress", "content": []})
        for part_index, part in enumerate(item["content"]):
            spot = {**place, "content_index": part_index}
            text = part["text"]
            yield {"type": "response.content_part.added", **spot, "part": {**part, "text": ""}}
            for piece in re.findall(r"\S+\s*", text):
                yield {"type": "response.output_text.delta", **spot, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **spot, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **spot, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: Item) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


# ASGI in four functions.


def read_key(scope: Scope) -> str:
    """The key that a request came with."""
    sent: str = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
    return sent


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def send_json(send: Send, status: int, value: Any) -> None:
    await send_bytes(send, status, b"application/json", msgspec.json.encode(value))


async def send_bytes(send: Send, status: int, media: bytes, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", media)]})
    await send({"type": "http.response.body", "body": body})


async def send_events(send: Send, events: Iterator[dict[str, Any]]) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    for event in events:
        frame = b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
