"""Requests out of a server's own OpenAPI document, and what must hold of whatever it answers.

It knows the wire and how a server is asked, no implementation. Invariant: the same seed makes the same requests but
for the ids, which are those that this server gave.
"""

import asyncio
import json
import random
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import jsonschema

from antiphon.client import Transport
from antiphon.protocol.lifecycle import StreamChecker
from tests.generated.making import ODD_TEXTS, PNG, Maker, Spoiler, encode
from tests.scenarios import strict

#: No request may take longer.
REQUEST_S = 20.0
#: Ids of each kind that are remembered.
KEPT_IDS = 200
CREATE = ("/v1/responses", "post")
#: What makes a model server fail: two models, a text, a model that keeps to no schema, and a tool that the scripted
#: model calls unfittingly.
FAILING = (b"failing", b"cut-off", b"upstream-fails", b"by-schema")
#: An MCP server that nobody runs.
UNREACHABLE = b"http://127.0.0.1:9/mcp"
#: An upstream that failed may be told as any of these; its own words, handed on, as 500 too.
FAILURES = (429, 502, 503, 504)
#: The body of a request that is printed is cut here.
PRINTED_CHARACTERS = 6000
#: Echoed as the client sent them.
ECHOES: Mapping[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "metadata": {},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
}
STAND_IN: Mapping[str, Any] = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [],
}
_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}
_OUTPUTS = {output: call for call, output in _CALLS.items()}


class Sent(NamedTuple):
    """One request."""

    method: str
    path: str
    operation: tuple[str, str]
    body: bytes | None
    #: Whether its upstream was told to fail.
    may_fail: bool = False

    def print(self) -> str:
        """As a command."""
        words = ["curl", "-sX", self.method.upper(), f"http://127.0.0.1:8300{self.path}"]
        if self.body is not None:
            text = self.body[:PRINTED_CHARACTERS].decode("utf-8", "backslashreplace")
            words += ["-H", "content-type: application/json", "--data-binary", text]
        return shlex.join(words)


class Received(NamedTuple):
    """One answer."""

    status: int
    content_type: str
    raw: bytes


class Fuzzer:
    """Makes requests, sends them, judges the answers; `faults` are the broken promises, with their requests."""

    def __init__(
        self,
        transport: Transport,
        document: Mapping[str, Any],
        seed: int,
        models: Mapping[str, int],
        request_s: float = REQUEST_S,
    ) -> None:
        self._transport = transport
        self._document = document
        self.seed = seed
        self._choice = random.Random(seed)
        self._models = models
        self._request_s = request_s
        self._ids: dict[str, list[str]] = {
            "response": [],
            "conversation": [],
            "item": [],
            "call": [],
            "seal": [],
        }
        self._maker = Maker(document["components"]["schemas"], self._choice, self._list_hints())
        self._spoiler = Spoiler(self._choice, self._maker)
        self._validators: dict[str, Any] = {}
        self.operations = [
            (path, method) for path, methods in document["paths"].items() for method in methods
        ]
        self._last_item_path: dict[str, str] = {}
        self.faults: list[str] = []
        self.statuses: dict[tuple[str, str, int], int] = {}
        #: How many answers were streams.
        self.streams = 0

    async def run(self, count: int, *, lanes: int = 1) -> None:
        """So many requests, in so many lanes at once."""
        await asyncio.gather(*(self._run_lane(count // lanes) for _ in range(lanes)))

    async def _run_lane(self, count: int) -> None:
        for _ in range(count):
            sent = self._make_request()
            try:
                async with asyncio.timeout(self._request_s):
                    received = await self._send(sent)
            except TimeoutError:
                self._report(sent, f"no answer within {self._request_s:g} s")
                continue
            except Exception as error:
                self._report(sent, f"the connection broke: {type(error).__name__}: {error}")
                continue
            key = (sent.operation[1], sent.operation[0], received.status)
            self.statuses[key] = self.statuses.get(key, 0) + 1
            try:
                self._judge(sent, received)
                self.streams += received.content_type.startswith("text/event-stream")
            except AssertionError as fault:
                self._report(sent, f"{received.status}: {str(fault)[:1500]}\nanswer: {received.raw[:800]!r}")

    def _report(self, sent: Sent, what: str) -> None:
        self.faults.append(f"seed {self.seed}: {what}\n{sent.print()}")

    # Making a request

    def _make_request(self) -> Sent:
        choice = self._choice
        operation = CREATE if choice.random() < 0.55 else choice.choice(self.operations)
        path, method = operation
        specification = self._document["paths"][path][method]
        url, query = path, []
        if path.endswith("{item_id}") and self._last_item_path and choice.random() < 0.7:
            item = choice.choice(list(self._last_item_path))
            url = f"/v1/conversations/{self._last_item_path[item]}/items/{item}"
        for parameter in specification.get("parameters", ()):
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                url = url.replace("{" + name + "}", quote(self._make_path_part(name), safe=""))
            elif choice.random() < 0.3:
                query.append((name, self._make_query(parameter)))
        if choice.random() < 0.02:
            query.append(("bogus", "1"))
        body, value = None, None
        if "requestBody" in specification:
            value = self._make_body(specification["requestBody"], operation)
            spoils = choice.random()
            if spoils < 0.3:
                value = self._spoiler.spoil(value)
            body = encode(value)
            if spoils > 0.98:
                body = self._spoiler.garble(body)
        elif choice.random() < 0.02:
            body = b"{}"
        url += "?" + urlencode(query, errors="surrogatepass") if query else ""
        return Sent(method, url, operation, body, self._may_fail(operation, body))

    def make_create(self) -> tuple[Any, bool]:
        """The body of a request for a response, and whether its upstream was told to fail."""
        value = self._make_body(self._document["paths"][CREATE[0]][CREATE[1]]["requestBody"], CREATE)
        if self._choice.random() < 0.3:
            value = self._spoiler.spoil(value)
        return value, self._may_fail(CREATE, encode(value))

    def remember_response(self, value: dict[str, Any]) -> None:
        """Later requests may speak of it and of its items."""
        self._remember(value, Sent("post", CREATE[0], CREATE, None))

    def _may_fail(self, operation: tuple[str, str], body: bytes | None) -> bool:
        if "chat" in operation[0]:
            return True
        if body is None:
            return False
        # A tool that must be called cannot be had from a server that cannot be reached.
        demands_more = UNREACHABLE in body and b'"tool_choice"' in body
        return demands_more or any(word in body for word in FAILING)

    def _make_path_part(self, name: str) -> str:
        choice = self._choice
        kind = name.removesuffix("_id")
        if kind == "model":
            return self._pick_model()
        known = self._ids.get(kind) or ["none"]
        if choice.random() < 0.75:
            return known[-1] if choice.random() < 0.3 else choice.choice(known)
        if choice.random() < 0.5:
            return choice.choice([each for ids in self._ids.values() for each in ids] or ["x"])
        return choice.choice(ODD_TEXTS).encode("utf-8", "replace").decode() or "x"

    def _make_query(self, parameter: Mapping[str, Any]) -> str:
        choice = self._choice
        if choice.random() < 0.2:
            return choice.choice((*ODD_TEXTS, "-1", "999999999999999999999", "1e3", "True"))
        if parameter["name"] in ("after", "from", "to"):
            # Two of many are seldom on one path; the newest one is named often enough to be both ends of a range.
            known = self._ids["item"] or ["x"]
            return known[-1] if choice.random() < 0.5 else choice.choice(known)
        value = self._maker.make(parameter["schema"])
        if isinstance(value, list):
            value = value[0] if value else "x"
        return str(value)

    def _make_body(self, described: Mapping[str, Any], operation: tuple[str, str]) -> Any:
        schema = described["content"]["application/json"]["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        self._maker.optional_share = self._choice.choice((0.05, 0.15, 0.4))
        if name not in ("CreateRequest", "CountRequest", "CompactRequest"):
            return self._maker.make(schema)
        share = self._choice.choice((0.02, 0.05, 0.05, 0.15, 0.5))
        chances: dict[str, float] = {"other": share, "model": 1.0, "input": 0.97, "tools": 0.3, "stream": 0.5}
        chances |= {"previous_response_id": 0.2, "conversation": 0.1, "tool_choice": 0.08, "background": 0.05}
        body: dict[str, Any] = self._maker.make_object(schema, **chances)
        if body.get("model") == "slow" and self._choice.random() < 0.8:
            body["background"] = True
        if "previous_response_id" in body and self._choice.random() < 0.9:
            body.pop("conversation", None)
        if self._choice.random() < 0.8:
            self._leave_out_unserved(body)
        if isinstance(body.get("input"), list) and self._choice.random() < 0.8:
            body["input"] = self._pair(body["input"])
        return body

    def _leave_out_unserved(self, body: dict[str, Any]) -> None:
        """Most requests ask for nothing that is refused before anything else is looked at."""
        for name in (
            "prompt",
            "moderation",
            "background_options",
            "context_management",
            "image",
            "antiphon",
            "access_programs",
        ):
            body.pop(name, None)
        if not body.get("stream"):
            body.pop("stream_options", None)

    def _pair(self, items: list[Any]) -> list[Any]:
        """Outputs for calls and calls for outputs, as a valid input has them."""
        paired: list[Any] = []
        schemas = self._document["components"]["schemas"]
        for item in items:
            kind = str(item.get("type")) if isinstance(item, dict) else ""
            partner = _CALLS.get(kind) or _OUTPUTS.get(kind)
            if partner is None:
                paired.append(item)
                continue
            other = self._maker.make({"$ref": f"#/{_find_schema(schemas, partner)}"})
            call_id = f"call_{self._choice.randrange(10**6)}"
            item["call_id"] = other["call_id"] = call_id
            paired += [item, other] if kind in _CALLS else [other, item]
        return paired

    def _list_hints(self) -> dict[str, Callable[[], Any]]:
        choice = self._choice

        def pick(kind: str) -> Callable[[], str]:
            return lambda: choice.choice(self._ids[kind] or [f"{kind}_unknown"])

        return {
            "model": self._pick_model,
            "previous_response_id": pick("response"),
            "conversation": pick("conversation"),
            "call_id": lambda: choice.choice((*self._ids["call"][-3:], "call_1", "call_2")),
            "id": lambda: choice.choice((*self._ids["item"][-20:], "msg_1", "fc_1", "rs_1", "x" * 64)),
            "approval_request_id": pick("item"),
            "encrypted_content": lambda: choice.choice((*self._ids["seal"], "gAAAA", "")),
            "server_url": lambda: choice.choice((UNREACHABLE.decode(), UNREACHABLE.decode(), "no url")),
            "image_url": lambda: choice.choice(
                (PNG, PNG, "https://example.org/a.png", "data:image/png;base64,!", "x")
            ),
            "file_data": lambda: choice.choice(
                ("data:text/plain;base64,aGVsbG8=", "data:application/pdf;base64,JVBERi0=", "aGVsbG8=", "x")
            ),
            "parameters": lambda: choice.choice(
                ({"type": "object", "properties": {"x": {"type": "integer"}}}, {}, None)
            ),
            "schema": lambda: choice.choice(
                ({"type": "object", "properties": {}}, {}, {"type": "object", "$ref": "#"})
            ),
            "arguments": lambda: choice.choice(("{}", '{"x": 1}', "{", "[]", "")),
            "definition": lambda: choice.choice(('start: "a"', "[a-z]+", "(", "start: start", "(a+)+$")),
            "stream": lambda: choice.random() < 0.7,
        }

    def _pick_model(self) -> str:
        return self._choice.choices(list(self._models), list(self._models.values()))[0]

    # Sending and judging

    async def _send(self, sent: Sent) -> Received:
        headers = {"content-type": "application/json"} if sent.body is not None else {}
        reply = await self._transport.send(sent.method.upper(), sent.path, headers, sent.body)
        try:
            return Received(reply.status, reply.headers.get("content-type", ""), await reply.read())
        finally:
            await reply.close()

    def _judge(self, sent: Sent, received: Received) -> None:
        path, method = sent.operation
        status = received.status
        allowed = (*FAILURES, 500) if "chat" in path else FAILURES
        assert status < 500 or (sent.may_fail and status in allowed), "an error of the server"
        if received.content_type.startswith("text/event-stream"):
            if "chat" not in path:
                self._judge_stream(sent, received.raw)
            return
        assert received.content_type.startswith("application/json"), received.content_type
        value = json.loads(received.raw)
        if "chat" in path and status != 400:
            # The model server's own words.
            return
        described = self._document["paths"][path][method]["responses"]
        odd_path = status in (404, 405, 403) and "{" in path
        assert str(status) in described or odd_path or sent.may_fail, f"status {status} is not described"
        if status >= 400:
            strict.check_error(value)
            return
        self._validate(described["200"]["content"]["application/json"]["schema"], value)
        if (path, method) == CREATE or (value.get("object") == "response" and "deleted" not in value):
            # What was read may have lost its items since: they can be deleted from its conversation.
            is_emptied = method == "get" and value["status"] == "completed" and not value["output"]
            _check_response({**value, "output": [STAND_IN]} if is_emptied else value)
        self._remember(value, sent)

    def _judge_stream(self, sent: Sent, raw: bytes) -> None:
        assert raw.endswith(b"data: [DONE]\n\n"), "the stream does not end with [DONE]"
        frames = raw.removesuffix(b"\n\n").split(b"\n\n")[:-1]
        from_start = "starting_after" not in sent.path
        checker = StreamChecker()
        for frame in frames:
            first, _, second = frame.partition(b"\n")
            assert first.startswith(b"event: "), frame
            assert second.startswith(b"data: "), frame
            assert b"\n" not in second, frame
            event = json.loads(second[6:])
            assert event["type"] == first[7:].decode()
            _check_event(event)
            faults = checker.feed(event) if from_start else []
            assert not faults, f"{faults} at {event}"
            if "response" in event:
                self._remember(event["response"], sent)
        assert not from_start or checker.end() == [], "the stream ends too early"

    def _validate(self, schema: Mapping[str, Any], value: Any) -> None:
        key = json.dumps(schema)
        validator = self._validators.get(key)
        if validator is None:
            whole = {**schema, "components": self._document["components"]}
            validator = self._validators[key] = jsonschema.Draft202012Validator(whole)
        errors = [
            f"{'/'.join(map(str, error.path))}: {error.message[:300]}"
            for error in validator.iter_errors(value)
        ]
        assert not errors, f"the answer does not fit its schema: {errors[:5]}"

    def _remember(self, value: Any, sent: Sent) -> None:
        kind = value.get("object")
        if kind in ("response", "conversation") and isinstance(value.get("id"), str):
            self._keep(kind, value["id"])
        for item in (*value.get("output", ()), *(value.get("data") or ())):
            if not isinstance(item, dict):
                continue
            if (
                isinstance(item.get("id"), str)
                and kind in ("response", "list")
                and item.get("object") != "model"
            ):
                self._keep("item", item["id"])
                parts = sent.path.split("/")
                if len(parts) > 4 and parts[2] == "conversations" and parts[4].startswith("items"):
                    self._last_item_path[quote(item["id"], safe="")] = parts[3]
                    if len(self._last_item_path) > KEPT_IDS:
                        self._last_item_path.pop(next(iter(self._last_item_path)))
            for key, kept in (("call_id", "call"), ("encrypted_content", "seal")):
                if isinstance(item.get(key), str):
                    self._keep(kept, item[key])

    def _keep(self, kind: str, found: str) -> None:
        ids = self._ids[kind]
        if found in ids[-5:]:
            return
        ids.append(found)
        if len(ids) > KEPT_IDS:
            ids.pop(self._choice.randrange(KEPT_IDS // 2))


def _find_schema(schemas: Mapping[str, Any], item_type: str) -> str:
    for name, schema in schemas.items():
        if schema.get("properties", {}).get("type", {}).get("enum") == [item_type]:
            return f"components/schemas/{name}"
    raise AssertionError(f"no schema is a {item_type}")


def _check_response(value: dict[str, Any]) -> None:
    """Strictly, but for what the client itself sent (Decision: an echo of its own value)."""
    try:
        strict.check_response(value)
    except AssertionError:
        strict.check_response(_without_echoes(value))


def _check_event(event: dict[str, Any]) -> None:
    try:
        strict.check_event(event)
    except AssertionError:
        if "response" not in event:
            raise
        strict.check_event({**event, "response": _without_echoes(event["response"])})


def _without_echoes(response: dict[str, Any]) -> dict[str, Any]:
    return {**response, **{key: value for key, value in ECHOES.items() if key in response}}
