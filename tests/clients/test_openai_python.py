"""The official `openai` package for Python, over a real socket, as its users write it.

Everything here is the package's own surface; nothing of ours stands between it and the server.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import openai.types.responses as sdk
import pytest
from openai import OpenAI
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools
from pydantic import BaseModel

from tests.scenarios.mcp_server import TOKEN, McpServerThread
from tests.scenarios.process import ServerProcess, start_server

pytestmark = pytest.mark.clients

PLANT = "Remember this word: marmalade."
ASK = "What was the word?"
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
#: The built-in script's habits, and answers that fail in every way.
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^refuse (?P<x>400)", "error": {"status": 400, "message": "Bad."}},
        {"when": "^refuse 429", "error": {"status": 429, "message": "Wait."}},
        {"when": "^refuse 500", "error": {"status": 500, "message": "Boom."}},
        {"when": "^refuse 401", "error": {"status": 401, "message": "Who?"}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^cut", "text": "Half an", "finish": "length"},
        {"when": "^think", "reasoning": "Let me see.", "text": "Thought."},
        {"when": "^decline", "refusal": "I will not."},
        {"when": "^slowly", "text": "one two three four five six", "pause_s": 0.05},
        {"when": "^hang", "text": "one two three four five six", "pause_s": 30},
        {"when": "^patch", "after_output": True, "act": "repeat_outputs"},
        {"when": "^patch", "calls": [{"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}]},
        {"when": "^weather", "after_output": True, "act": "repeat_outputs"},
        {
            "when": "^weather",
            "calls": [{"name": "home__weather", "arguments": {"city": "Oslo"}}],
        },
        {"when": "^send", "after_output": False, "calls": [{"name": "home__send", "arguments": {}}]},
        {"tool_forced": True, "act": "call_tools"},
        {"after_output": True, "act": "repeat_outputs"},
        {"names_tool": True, "act": "call_tools"},
        {"wants_json": True, "act": "fill_schema"},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module."""
    with start_server(tmp_path_factory.mktemp("openai"), SCRIPT) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    """The package's client; no retries, so that an error is seen at once."""
    with OpenAI(base_url=server.url, api_key="unused", max_retries=0, timeout=30) as made:
        yield made


def test_a_word_is_planted_and_found_by_id(client: OpenAI) -> None:
    """Ours: input_tokens by id equals the full-history request's and exceeds the bare question's."""
    planted = client.responses.create(model="scripted", input=PLANT)
    by_id = client.responses.create(model="scripted", input=ASK, previous_response_id=planted.id)
    history: Any = [
        {"role": "user", "content": PLANT},
        *[item.model_dump(exclude_none=True) for item in planted.output],
        {"role": "user", "content": ASK},
    ]
    full = client.responses.create(model="scripted", input=history)
    bare = client.responses.create(model="scripted", input=ASK)
    assert "marmalade" in by_id.output_text
    assert "marmalade" in full.output_text
    assert "marmalade" not in bare.output_text
    assert by_id.usage is not None
    assert full.usage is not None
    assert bare.usage is not None
    assert by_id.usage.input_tokens == full.usage.input_tokens > bare.usage.input_tokens
    assert by_id.previous_response_id == planted.id
    assert by_id._request_id


def test_items_dumped_with_their_nulls_can_be_sent_back(client: OpenAI) -> None:
    """Responses API 3.4, as decided: null on an optional item field equals absent."""
    think = client.responses.create(model="scripted", input="think")
    history: Any = [{"role": "user", "content": PLANT}, *[item.model_dump() for item in think.output]]
    response = client.responses.create(model="scripted", input=[*history, {"role": "user", "content": ASK}])
    assert "marmalade" in response.output_text


def test_a_stream_is_iterated(client: OpenAI) -> None:
    """Responses API 8.1: `stream=True` ends at `[DONE]`."""
    pieces = []
    kinds = []
    for event in client.responses.create(model="scripted", input=PLANT, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "".join(pieces) == "Noted: marmalade."


@pytest.mark.parametrize("text", [PLANT, "think", "decline", "Use get_weather for Paris."])
def test_the_stream_helper_gives_the_final_response(client: OpenAI, text: str) -> None:
    """Responses API 8.1: the helper's demands on order, indexes and ids, for each kind of item."""
    with client.responses.stream(model="scripted", input=text, tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    read = client.responses.retrieve(final.id)
    assert read.output_text == final.output_text
    assert [item.to_dict()["id"] for item in read.output] == [item.to_dict()["id"] for item in final.output]
    assert read.usage == final.usage


def test_the_stream_helper_parses_structured_text(client: OpenAI) -> None:
    """Responses API 8.1: a pydantic model as text_format, while streaming."""

    class Word(BaseModel):
        word: str

    planted = client.responses.create(model="scripted", input=PLANT)
    with client.responses.stream(
        model="scripted", input=ASK, text_format=Word, previous_response_id=planted.id
    ) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == Word(word="marmalade")


def test_a_pydantic_model_is_parsed(client: OpenAI) -> None:
    """Responses API 8.1: `parse` with a strict schema made from the model."""

    class Word(BaseModel):
        word: str
        count: int

    planted = client.responses.create(model="scripted", input=PLANT)
    response = client.responses.parse(
        model="scripted", input=ASK, text_format=Word, previous_response_id=planted.id
    )
    assert response.output_parsed is not None
    assert response.output_parsed.word == "marmalade"
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_sends_only_the_output(client: OpenAI, stream: bool) -> None:
    """ours, through the package."""
    question = "My name is Ada. Use get_weather for Paris."
    if stream:
        with client.responses.stream(model="scripted", input=question, tools=[TOOL]) as opened:
            first: Any = opened.get_final_response()
    else:
        first = client.responses.create(model="scripted", input=question, tools=[TOOL])
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"city": "Paris"}
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    second = client.responses.create(
        model="scripted", input=[output], previous_response_id=first.id, tools=[TOOL]
    )
    assert "18 degrees" in second.output_text
    third = client.responses.create(
        model="scripted", input="What is my name?", previous_response_id=second.id
    )
    assert "Ada" in third.output_text


def test_responses_are_read_and_deleted(client: OpenAI) -> None:
    """Responses API 1, rows 2 and 3; the package asks for anything when it deletes."""
    made = client.responses.create(model="scripted", input=PLANT, metadata={"a": "b"})
    read = client.responses.retrieve(made.id)
    assert read.to_dict() == made.to_dict()
    assert read.metadata == {"a": "b"}
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(made.id)
    assert caught.value.message
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="scripted", input=ASK, previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"


def test_input_items_are_paged_by_themselves(client: OpenAI) -> None:
    """Responses API 8.1: the cursor is the last item's id, with has_more."""
    tip = None
    for number in range(4):
        tip = client.responses.create(model="scripted", input=f"number {number}", previous_response_id=tip).id
    assert tip is not None
    for order in ("asc", "desc"):
        items = list(client.responses.input_items.list(tip, limit=2, order=order))
        assert len(items) == 7
        assert len({item.id for item in items}) == 7
        plain = [item.to_dict() for item in items]
        texts: Any = [item["content"] for item in plain if item.get("role") == "user"]
        numbers = [f"number {number}" for number in range(4)]
        told = [content[0]["text"] for content in texts]
        assert told == (numbers if order == "asc" else numbers[::-1])
    page = client.responses.input_items.list(tip, limit=3, include=["message.output_text.logprobs"])
    assert page.has_more
    assert len(page.get_next_page().data) == 3


def test_models_are_listed_and_read(client: OpenAI) -> None:
    """Responses API 1, row 16."""
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "antiphon"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "kind", "status", "code", "param"),
    [
        ({"input": "refuse 400"}, openai.BadRequestError, 400, None, None),
        ({"input": "refuse 429"}, openai.RateLimitError, 429, "rate_limit_exceeded", None),
        ({"input": "refuse 500"}, openai.InternalServerError, 502, None, None),
        ({"input": "refuse 401"}, openai.InternalServerError, 500, None, None),
        ({"input": "x", "model": "nobody"}, openai.BadRequestError, 400, "model_not_found", "model"),
        (
            {"input": "x", "temperature": 9},
            openai.BadRequestError,
            400,
            "decimal_above_max_value",
            "temperature",
        ),
        (
            {"input": "x", "background": True, "store": False},
            openai.BadRequestError,
            400,
            "invalid_value",
            "background",
        ),
        ({"input": []}, openai.BadRequestError, 400, "missing_required_parameter", None),
        (
            {"input": "x", "extra_body": {"sotre": 1}},
            openai.BadRequestError,
            400,
            "unknown_parameter",
            "sotre",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_packages_exceptions(
    client: OpenAI,
    body: dict[str, Any],
    kind: type[openai.APIStatusError],
    status: int,
    code: str | None,
    param: str | None,
    stream: bool,
) -> None:
    """Responses API 6: the class by status, the error object's members as attributes."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(**{"model": "scripted", "stream": stream, **body})
    assert type(caught.value) is kind
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (status, code, param)
    assert caught.value.request_id


def test_a_stream_that_breaks_raises(client: OpenAI) -> None:
    """Responses API 8.1: a nested error event raises APIError with our message."""
    stream = client.responses.create(model="scripted", input="break", stream=True)
    with pytest.raises(openai.APIError) as caught:
        for _ in stream:
            pass
    assert caught.value.message == "Boom."


def test_a_stream_that_was_cut_is_incomplete(client: OpenAI) -> None:
    """Responses API 4.5."""
    *_, last = client.responses.create(model="scripted", input="cut", stream=True)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output_text == "Half an"


def test_a_stream_may_be_left_early(client: OpenAI, server: ServerProcess) -> None:
    """Decided: the response is stored as cancelled; the connection's end is enough."""
    with client.responses.create(model="scripted", input=PLANT, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
    assert client.responses.create(model="scripted", input=PLANT).status == "completed"


def test_the_raw_answer_can_be_read(client: OpenAI) -> None:
    """Responses API 1: x-request-id; as decided: antiphon-version."""
    raw = client.responses.with_raw_response.create(model="scripted", input=PLANT)
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["antiphon-version"]
    assert raw.parse().status == "completed"


def test_many_requests_share_one_connection(server: ServerProcess) -> None:
    """Ours: keep-alive; every answer leaves the connection usable, refusals and streams included."""
    one = type(openai.DEFAULT_CONNECTION_LIMITS)(max_connections=1)
    with OpenAI(
        base_url=server.url,
        api_key="unused",
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultHttpxClient(limits=one),
    ) as client:
        for number in range(20):
            with pytest.raises(openai.BadRequestError):
                client.responses.create(model="nobody", input="x")
            assert list(client.responses.create(model="scripted", input=PLANT, stream=True))
            assert client.responses.create(model="scripted", input=f"My name is n{number}.").output_text


def test_a_conversation_is_driven_through_the_package(client: OpenAI) -> None:
    """Responses API 1, rows 8 to 15: the package's own methods and pagers."""
    conversation = client.conversations.create(metadata={"topic": "fruit"}, items=[])
    assert conversation.id.startswith("conv_")
    created: Any = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "My name is Ada."}]
    )
    assert [item.type for item in created.data] == ["message"]
    first = client.responses.create(model="scripted", input=PLANT, conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = client.responses.create(model="scripted", input=ASK, conversation=conversation.id)
    assert "marmalade" in second.output_text
    for order in ("asc", "desc"):
        items: Any = list(client.conversations.items.list(conversation.id, limit=2, order=order))
        assert len(items) == 5
        assert len({item.id for item in items}) == 5
    newest: Any = client.conversations.items.retrieve(items[0].id, conversation_id=conversation.id)
    assert newest.content[0].text == second.output_text
    after = client.conversations.items.delete(items[0].id, conversation_id=conversation.id)
    assert after.id == conversation.id
    assert len(list(client.conversations.items.list(conversation.id))) == 4
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="scripted", input=ASK, conversation=conversation.id)


def wait_ended(client: OpenAI, response_id: str) -> Any:
    """Poll as the package's users do."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        response = client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.02)
    raise AssertionError("the response did not end")


def test_a_background_response_is_polled(client: OpenAI) -> None:
    """Responses API 1.3."""
    queued = client.responses.create(model="scripted", input=PLANT, background=True)
    assert queued.status == "queued"
    assert queued.output == []
    ended = wait_ended(client, queued.id)
    assert ended.status == "completed"
    assert ended.output_text == "Noted: marmalade."
    again = client.responses.create(model="scripted", input=ASK, previous_response_id=queued.id)
    assert "marmalade" in again.output_text
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.cancel(queued.id)
    assert caught.value.message.endswith("Cannot cancel a completed response.")


def test_a_background_response_is_cancelled(client: OpenAI) -> None:
    """Responses API 1.3: idempotent, and nothing of the output stays."""
    queued = client.responses.create(model="scripted", input="hang", background=True)
    for _ in range(2):
        cancelled = client.responses.cancel(queued.id)
        assert (cancelled.status, cancelled.output, cancelled.usage) == ("cancelled", [], None)
    made = client.responses.create(model="scripted", input=PLANT)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.cancel(made.id)
    assert caught.value.message.endswith("Cannot cancel a synchronous response.")


def test_a_background_stream_is_left_and_resumed(client: OpenAI) -> None:
    """Responses API 1.2: no gap and no duplicate, live or afterwards."""
    seen: list[Any] = []
    response_id = ""
    with client.responses.create(model="scripted", input="slowly", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                break
    last = seen[-1].sequence_number
    seen += client.responses.retrieve(response_id, stream=True, starting_after=last)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == "one two three four five six" == seen[-1].response.output_text
    whole = list(client.responses.retrieve(response_id, stream=True))
    assert [event.to_dict() for event in whole] == [event.to_dict() for event in seen]
    with client.responses.stream(response_id=response_id, starting_after=last) as helper:
        kinds = [event.type for event in helper]
        assert helper.get_final_response().output_text == text
    assert kinds[-1] == "response.completed"


def test_the_stream_helper_follows_a_background_response(client: OpenAI) -> None:
    """Responses API 8.1: the helper's demands hold for `background` too."""
    with client.responses.stream(model="scripted", input="slowly", background=True) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert final.output_text == "one two three four five six"
    assert client.responses.retrieve(final.id).status == "completed"


def test_a_response_that_cannot_be_resumed_says_so(client: OpenAI) -> None:
    """Responses API 1.2: only what was created with background and stream."""
    made = client.responses.create(model="scripted", input=PLANT)
    with pytest.raises(openai.BadRequestError):
        list(client.responses.retrieve(made.id, stream=True))


def test_input_tokens_are_counted(client: OpenAI) -> None:
    """Responses API 1, row 7: what usage says afterwards."""
    planted = client.responses.create(model="scripted", input=PLANT)
    shared: Any = {"model": "scripted", "input": ASK, "tools": [TOOL], "previous_response_id": planted.id}
    counted = client.responses.input_tokens.count(**shared)
    made = client.responses.create(**shared)
    assert made.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model="scripted", input=ASK, extra_body={"store": True})
    assert caught.value.code == "unknown_parameter"


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools_are_called(client: OpenAI, stream: bool) -> None:
    """Responses API 2.2: raw input there, raw output back, as the package's own classes."""
    tool: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
    if stream:
        with client.responses.stream(model="scripted", input="patch", tools=[tool]) as opened:
            deltas = [
                event.delta for event in opened if event.type == "response.custom_tool_call_input.delta"
            ]
            first: Any = opened.get_final_response()
        assert "".join(deltas) == "*** Begin Patch"
    else:
        first = client.responses.create(model="scripted", input="patch", tools=[tool])
    (call,) = first.output
    assert isinstance(call, sdk.ResponseCustomToolCall)
    assert (call.name, call.input) == ("apply_patch", "*** Begin Patch")
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done: plums."}
    second = client.responses.create(
        model="scripted", input=[output], previous_response_id=first.id, tools=[tool]
    )
    assert "Done: plums." in second.output_text
    listed = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in listed] == ["message", "custom_tool_call", "custom_tool_call_output"]


@pytest.fixture
def mcp_server() -> Iterator[McpServerThread]:
    """The SDK's own MCP server on loopback."""
    running = McpServerThread()
    yield running
    running.stop()


def test_mcp_items_are_the_package_s_classes(client: OpenAI, mcp_server: McpServerThread) -> None:
    """Responses API 3: lists, calls and approvals through the package."""
    tool: Any = {
        "type": "mcp",
        "server_label": "home",
        "server_url": mcp_server.url,
        "authorization": TOKEN,
        "require_approval": {"never": {"tool_names": ["weather"]}},
    }
    made = client.responses.create(model="scripted", input="weather", tools=[tool])
    listing, call, said = made.output
    assert isinstance(listing, McpListTools)
    assert [each.name for each in listing.tools] == ["alarm", "send", "weather"]
    assert isinstance(call, McpCall)
    assert (call.output, call.error, call.status) == ("4 degrees in Oslo", None, "completed")
    assert "4 degrees in Oslo" in made.output_text
    assert said.type == "message"
    declared: Any = made.tools[0]
    assert declared.authorization is None
    with client.responses.stream(
        model="scripted", input="send", tools=[tool], previous_response_id=made.id
    ) as stream:
        for _ in stream:
            pass
        asked = stream.get_final_response()
    (request,) = asked.output
    assert isinstance(request, McpApprovalRequest)
    answer: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    after = client.responses.create(
        model="scripted", input=[answer], tools=[tool], previous_response_id=asked.id
    )
    sent: Any = after.output[0]
    assert (sent.type, sent.output, sent.approval_request_id) == ("mcp_call", "Sent.", request.id)
    assert mcp_server.calls == ["weather", "send"]


def test_reasoning_is_carried_under_seal(client: OpenAI) -> None:
    """Responses API 2: `reasoning.encrypted_content` with nothing stored, sent back as the package dumps it."""
    made = client.responses.create(
        model="scripted", input="think", store=False, include=["reasoning.encrypted_content"]
    )
    reasoning: Any = made.output[0]
    assert reasoning.encrypted_content
    history: Any = [{"role": "user", "content": PLANT}, *[item.model_dump() for item in made.output]]
    again = client.responses.create(
        model="scripted", input=[*history, {"role": "user", "content": ASK}], store=False
    )
    assert "marmalade" in again.output_text


def test_chat_completions_of_a_script_are_refused_by_name(client: OpenAI) -> None:
    """Ours: there is no server to hand them on to; an unknown model is not found."""
    message: Any = {"role": "user", "content": "x"}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="scripted", messages=[message])
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=[message])
    assert caught.value.code == "model_not_found"
