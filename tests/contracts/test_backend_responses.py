"""The Responses dialect keeps the contract of backends, against a server on loopback."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask, BackendEvent, Failed, Finished, ItemClosed, ItemEvent, ItemOpened
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from antiphon.backends.responses import ResponsesBackend
from antiphon.protocol.errors import (
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    ContextOverflowError,
    RequestError,
)
from antiphon.protocol.requests import decode_create_request
from tests.contracts.backend_suite import (
    BREAK,
    CHECKS,
    HELLO,
    REFUSE,
    TIMEOUT_S,
    Check,
    Subject,
    flatten,
    join_text,
    name_check,
)
from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    make_body,
    make_event,
    make_head,
    make_json,
    make_response_stream,
)

#: Profile -> `owned_by` in the model list, so that each kind of server is recognised as itself.
OWNERS = {"default": "fake", "llama.cpp": "llamacpp", "vllm": "vllm", "ollama": "library"}
WORDS = ("Hello ", "to ", "you, ", "whoever.")


def read_last_text(request: Request) -> str:
    """What the last message says."""
    content = request.json["input"][-1]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def answer(request: Request) -> Reply:
    """What the suite's texts ask for; usage grows with the prompt."""
    text = read_last_text(request)
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    added = make_event("response.output_item.added", output_index=0, item=item)
    if text == BREAK:
        delta = make_event("response.output_text.delta", item_id="msg_1", delta="This breaks")
        return Reply([make_head(), added, delta], end="close")
    if text == REFUSE:
        return Reply([make_json({"error": {"message": "No.", "type": "invalid_request_error"}}, status=400)])
    assert text == HELLO
    done = {
        **item,
        "status": "completed",
        "content": [{"type": "output_text", "text": "".join(WORDS), "annotations": [], "logprobs": []}],
    }
    usage = {"input_tokens": len(request.body) // 4, "output_tokens": 4, "total_tokens": 0}
    response = {"id": "resp_1", "status": "completed", "output": [done], "usage": usage}
    return Reply(
        make_response_stream(
            make_event("response.created", response={"id": "resp_1", "status": "in_progress"}),
            added,
            make_event(
                "response.content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}
            ),
            *(make_event("response.output_text.delta", item_id="msg_1", delta=word) for word in WORDS),
            make_event("response.output_item.done", output_index=0, item=done),
            make_event("response.completed", response=response),
        )
    )


@pytest.mark.parametrize("check", CHECKS, ids=name_check)
@pytest.mark.parametrize("profile", OWNERS)
def test_the_backend_keeps_the_contract(check: Check, profile: str) -> None:
    """Provenance: the check's own docstring."""

    async def run() -> None:
        async with FakeUpstream(answer, owned_by=OWNERS[profile]) as upstream:
            backend = ResponsesBackend(Endpoint(name="fake", url=upstream.url))
            try:
                await check(Subject(backend, MODEL, upstream.wait_idle, PROFILES[profile]))
            finally:
                await backend.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def ask_once(
    reply: Callable[[Request], Reply],
    *,
    key: str | None = None,
    profile: str = "default",
    body: dict[str, Any] | None = None,
) -> tuple[list[BackendEvent], list[Request]]:
    """The events of one answer, and what the server was asked."""

    async def run() -> tuple[list[BackendEvent], list[Request]]:
        async with FakeUpstream(reply) as upstream:
            backend = ResponsesBackend(Endpoint(name="fake", url=upstream.url, key=key))
            try:
                request = decode_create_request(
                    msgspec.json.encode({"model": MODEL, "input": HELLO, **(body or {})})
                )
                given = PROFILES[profile]
                segment = backend.transcribe(request.input, given, at_start=True)
                ask = Ask(model=MODEL, profile=given, transcript=[segment.body], request=request)
                return flatten([batch async for batch in backend.stream(ask)]), upstream.asked
            finally:
                await backend.close()

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_unknown_fields_types_and_events_pass_both_ways() -> None:
    """Decided: a field or an item of a newer API that we do not know passes byte-true, to the server and back."""
    sent = b'{"role":"user","content":"Say hello, please.","x_mood":{"deep":[1.0,2e3]}}'

    def echo(request: Request) -> Reply:
        item = request.body[request.body.index(b'"input":[') + 9 : -2]
        told = b'{"id":"own_1", "type":"slug:own" ,"heard":' + item + b"}"
        done = b'{"type":"response.output_item.done","output_index":0,"item":' + told + b"}"
        frames = b"data: " + done + b"\n\n"
        return Reply(
            make_response_stream(
                make_event(
                    "response.output_item.added", output_index=0, item={"id": "own_1", "type": "slug:own"}
                ),
                make_event("slug:own.ticked", output_index=0, item_id="own_1", tick=1.50),
                b"%x\r\n%b\r\n" % (len(frames), frames),
                make_event("response.completed", response={"status": "completed"}),
            )
        )

    events, asked = ask_once(echo, body={"input": [msgspec.Raw(sent)]})
    assert sent in asked[0].body
    assert events[1:] == [
        ItemOpened(0, b'{"id":"own_1","type":"slug:own"}'),
        ItemEvent(0, "slug:own.ticked", {"tick": msgspec.Raw(b"1.5")}),
        ItemClosed(0, b'{"id":"own_1", "type":"slug:own" ,"heard":' + sent + b"}"),
        Finished(reason="stop"),
    ]


def test_state_stays_with_us_and_sealed_reasoning_is_asked_for() -> None:
    """Decided: full input, `store: false`, and reasoning in a form that can be sent again."""
    fields = {"previous_response_id": "resp_x", "store": True, "stream": False, "antiphon": {"marks": {}}}
    _, asked = ask_once(answer, body=fields)
    assert asked[0].json == {
        "model": MODEL,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": HELLO}],
    }


def test_a_model_without_sealed_reasoning_is_asked_without_it() -> None:
    """OpenAI refuses the include for models that do not reason; the client did not ask for it."""

    def refuse(request: Request) -> Reply:
        if "include" in request.json:
            error = {"message": "Encrypted content is not supported with this model.", "param": "include"}
            return Reply([make_json({"error": error}, status=400)])
        return answer(request)

    events, asked = ask_once(refuse)
    assert isinstance(events[-1], Finished)
    assert [request.json.get("include") for request in asked] == [["reasoning.encrypted_content"], None]
    with pytest.raises(BackendError, match="Encrypted content"):
        ask_once(refuse, body={"include": ["reasoning.encrypted_content"]})


def test_a_server_that_does_not_stream_is_read_whole() -> None:
    """Ours: an answer in one JSON document has the same events."""
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"},
    ]
    document = {"object": "response", "status": "completed", "output": output, "error": None}
    events, _ = ask_once(lambda request: Reply([make_json(document)]))
    assert join_text(events) == "Hello."
    closed = [msgspec.json.decode(event.item) for event in events if isinstance(event, ItemClosed)]
    assert [item.get("status") for item in closed] == [None, "completed", "completed"]
    assert events[-1] == Finished(reason="stop")


@pytest.mark.parametrize(
    ("status", "error", "kind", "text"),
    [
        (400, {"code": "context_length_exceeded", "message": "Too long."}, ContextOverflowError, "exceeds"),
        (
            400,
            {
                "message": "request (12030 tokens) exceeds the available context size (4096 tokens), try",
                "code": 400,
            },
            ContextOverflowError,
            "12030.*4096",
        ),
        (401, {"message": "Bad key sk-secret-key"}, BackendAuthError, "credentials"),
        (429, {"message": "Slow down, sk-secret-key."}, BackendRateLimitError, r"Slow down, \*\*\*"),
        (404, {"message": "The model `x` does not exist."}, RequestError, "does not exist"),
        (404, {"message": "Not Found"}, BackendError, "no Responses interface"),
        (503, {"message": "Loading."}, BackendError, "Loading"),
    ],
)
def test_a_refusal_is_what_the_other_dialect_makes_of_it(
    status: int, error: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """Decided: refusals before the stream are HTTP errors of ours, our key is in none of them."""
    with pytest.raises(kind, match=text) as raised:
        ask_once(lambda request: Reply([make_json({"error": error}, status=status)]), key="sk-secret-key")
    assert "sk-secret-key" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "rate_limit_exceeded", "message": "Slow, sk-secret-key."}, BackendRateLimitError),
        ({"code": "context_length_exceeded", "message": "Too long."}, ContextOverflowError),
        ({"code": "server_error", "message": "Oh."}, BackendError),
        (None, BackendError),
    ],
)
@pytest.mark.parametrize("event", ["response.failed", "error"])
def test_a_failure_inside_the_stream_is_one_event(
    event: str, error: dict[str, Any] | None, kind: type[Exception]
) -> None:
    """Contract of `stream`: after `Opened`, failure is an event; its class comes from the code."""
    fields = {"response": {"status": "failed", "error": error}} if event == "response.failed" else error or {}
    events, _ = ask_once(
        lambda request: Reply(make_response_stream(make_event(event, **fields))), key="sk-secret-key"
    )
    last = events[-1]
    assert isinstance(last, Failed)
    assert type(last.error) is kind
    assert "sk-secret-key" not in last.error.message


def test_a_web_page_is_no_answer() -> None:
    """Ours: a wrong address is named as such."""
    with pytest.raises(BackendError, match="web page"):
        ask_once(lambda request: Reply([make_body(b"<html>", content_type="text/html")]))


@pytest.mark.parametrize(
    ("profile", "path", "told", "count"),
    [
        ("llama.cpp", "/v1/responses/input_tokens", {"input_tokens": 33}, 33),
        ("openai", "/v1/responses/input_tokens", {"input_tokens": 12}, 12),
        ("openai", "/elsewhere", {}, None),
        ("vllm", "/v1/responses/input_tokens", {"input_tokens": 12}, None),
    ],
)
def test_a_count_comes_from_the_servers_own_route(
    profile: str, path: str, told: dict[str, Any], count: int | None
) -> None:
    """llama.cpp recorded, OpenAI documented; a server without the route does not count."""

    class Counting(FakeUpstream):
        def reply(self, request: Request) -> Reply:
            return Reply([make_json(told)]) if request.path == path else super().reply(request)

    async def run() -> None:
        async with Counting(answer) as upstream:
            backend = ResponsesBackend(Endpoint(name="fake", url=upstream.url))
            ask = Ask(model=MODEL, profile=PROFILES[profile], transcript=[b'{"role":"user","content":"Hi"}'])
            assert await backend.count_tokens(ask) == count
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
