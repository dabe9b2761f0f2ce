"""Streams as clients read them: every kind of answer, every way to end."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends import Ask
from antiphon.store import Record
from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite import SqliteStore
from tests.scenarios.client import StrictClient, find_terminal, join_deltas, read_text
from tests.scenarios.serving import WAIT_S, GatedBackend, serve, serve_doubles

TEXT = "response.output_text.delta"
SUMMARY = "response.reasoning_summary_text.delta"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def run_answer(folder: Path, answer: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    """The events of one scripted answer."""

    async def story() -> list[dict[str, Any]]:
        async with serve(folder, {"answers": [answer]}) as client:
            events = await client.stream(input="Hello.", **body)
            # Whatever a stream ended with can be read back, word for word.
            read = await client.retrieve(find_terminal(events)["id"])
            assert read.body == find_terminal(events)
            return events

    return asyncio.run(story())


def collect_answer(folder: Path, answer: dict[str, Any], **body: Any) -> dict[str, Any]:
    """The same, without streaming."""

    async def story() -> dict[str, Any]:
        async with serve(folder, {"answers": [answer]}) as client:
            return await client.create(input="Hello.", **body)

    return asyncio.run(story())


def strip(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one run to the next."""
    text = {key: value for key, value in response.items() if key not in ("id", "created_at", "completed_at")}
    text["output"] = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in response["output"]
    ]
    return text


def test_a_text_answer_has_the_events_of_the_table_in_order(tmp_path: Path) -> None:
    """Responses API 4.2 and 4.3, text."""
    events = run_answer(tmp_path, {"text": "One two three."})
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        TEXT,
        TEXT,
        TEXT,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert join_deltas(events, TEXT) == read_text(find_terminal(events)) == "One two three."
    assert events[0]["response"] == events[1]["response"]
    assert find_terminal(events)["output"] == [events[-2]["item"]]


def test_reasoning_comes_before_the_text_as_a_summary(tmp_path: Path) -> None:
    """Decided: raw reasoning is sent as reasoning-summary events."""
    events = run_answer(tmp_path, {"reasoning": "Let me think. Yes.", "text": "Done."})
    assert [event["type"].removeprefix("response.") for event in events[2:9]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        *["reasoning_summary_text.delta"] * 4,
        "reasoning_summary_text.done",
    ]
    assert join_deltas(events, SUMMARY) == "Let me think. Yes."
    response = find_terminal(events)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Let me think. Yes."}]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 6}


def test_a_refusal_is_a_part_of_its_own(tmp_path: Path) -> None:
    """Responses API 4.3, refusal."""
    events = run_answer(tmp_path, {"refusal": "I will not."})
    kinds = [event["type"] for event in events]
    assert "response.refusal.done" in kinds
    assert TEXT not in kinds
    response = find_terminal(events)
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete_and_says_why(tmp_path: Path, finish: str, reason: str) -> None:
    """Responses API 4.5: the last item is incomplete, its done events are still sent."""
    events = run_answer(tmp_path, {"text": "Half an", "finish": finish})
    response = find_terminal(events)
    assert events[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert response["output"][0]["status"] == "incomplete"
    assert read_text(response) == "Half an"
    assert response["usage"]["output_tokens"] == 2


def test_max_output_tokens_ends_the_answer(tmp_path: Path) -> None:
    """Responses API 2: max_output_tokens covers what is visible; hit, the response is incomplete."""
    events = run_answer(tmp_path, {"text": " ".join(f"w{n}" for n in range(50))}, max_output_tokens=16)
    response = find_terminal(events)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 16
    assert response["max_output_tokens"] == 16


def test_an_incomplete_response_can_be_continued(tmp_path: Path) -> None:
    """Decided: completed or incomplete responses are parents."""

    async def story() -> None:
        script = {"answers": [{"text": "Half an", "finish": "length"}, {"text": "answer."}]}
        async with serve(tmp_path, script) as client:
            first = await client.create(input="Hello.")
            second = await client.create(input="Go on.", previous_response_id=first["id"])
            assert read_text(second) == "answer."

    asyncio.run(story())


@pytest.mark.parametrize(("finish", "details"), [("length", {"reason": "max_output_tokens"}), ("stop", None)])
def test_reasoning_alone_is_never_completed(
    tmp_path: Path, finish: str, details: dict[str, str] | None
) -> None:
    """Decided: after `length` with the reason, otherwise with null details and a warning."""
    response = find_terminal(run_answer(tmp_path, {"reasoning": "Hmm, hmm.", "finish": finish}))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == details
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    codes = [warning["code"] for warning in response.get("antiphon", {}).get("warnings", [])]
    assert codes == ([] if details else ["reasoning_only"])


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_an_empty_generation_fails(tmp_path: Path, finish: str) -> None:
    """Decided: nothing at all is failed, server_error; not streaming, the status says so too."""
    events = run_answer(tmp_path, {"finish": finish})
    assert [event["type"] for event in events[2:]] == ["error", "response.failed"]
    assert find_terminal(events)["error"]["code"] == "server_error"

    async def story() -> None:
        folder = tmp_path / "other"
        folder.mkdir()
        async with serve(folder, {"answers": [{"finish": finish}]}) as client:
            error = await client.refuse(502, input="Hello.")
            assert (error["type"], error["code"]) == ("server_error", "server_error")

    asyncio.run(story())


#: A trouble of the script, the status of the answer, its error's type and code, and response.error.code.
TROUBLES = [
    ({"status": 500, "message": "Boom."}, 502, "server_error", None, "server_error"),
    ({"status": 503, "message": "Busy."}, 502, "server_error", None, "server_error"),
    ({"status": 504, "message": "Slow."}, 504, "server_error", None, "server_error"),
    ({"status": 401, "message": "Who?"}, 500, "server_error", None, "server_error"),
    ({"status": 403, "message": "No."}, 500, "server_error", None, "server_error"),
    (
        {"status": 429, "message": "Wait."},
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
        "rate_limit_exceeded",
    ),
    (
        {"status": 429, "message": "Pay.", "code": "insufficient_quota"},
        429,
        "rate_limit_error",
        "insufficient_quota",
        "insufficient_quota",
    ),
    ({"status": 400, "message": "Bad."}, 400, "invalid_request_error", None, "invalid_prompt"),
    (
        {"status": 400, "message": "Long.", "code": "context_length_exceeded"},
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "context_length_exceeded",
    ),
]


@pytest.mark.parametrize(("trouble", "status", "kind", "code", "response_code"), TROUBLES)
def test_a_refusal_before_the_stream_is_an_http_error_and_one_within_it_an_event(
    tmp_path: Path, trouble: dict[str, Any], status: int, kind: str, code: str | None, response_code: str
) -> None:
    """Decided and reference 4.5: the same trouble before and after the first event."""

    async def story() -> None:
        script = {
            "rules": [
                {"when": "before", "error": {**trouble, "at": "before"}},
                {"text": "Half an", "error": {**trouble, "at": "after"}},
            ]
        }
        async with serve(tmp_path, script) as client:
            for stream in (False, True):
                answer = await client.post({"input": "before", "stream": stream})
                assert answer.status == status
                assert answer.error["message"] == trouble["message"]
                assert (answer.error["type"], answer.error["code"]) == (kind, code)
            late = await client.post({"input": "after"})
            assert late.status == status
            assert late.error == answer.error
            events = await client.stream(input="after")
            assert [event["type"] for event in events[-3:]] == [
                "response.output_item.done",
                "error",
                "response.failed",
            ]
            assert events[-2]["error"] == late.error
            response = find_terminal(events)
            assert response["error"] == {"code": response_code, "message": trouble["message"]}
            assert response["output"][0]["status"] == "incomplete"
            # Kept, readable, and no parent.
            assert (await client.retrieve(response["id"])).body == response
            error = await client.refuse(input="Go on.", previous_response_id=response["id"])
            assert error["code"] == "previous_response_not_found"
            assert "failed" in error["message"]

    asyncio.run(story())


def test_an_overflowing_prompt_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """Responses API 6.3, context overflow; ours: with the numbers that the backend told."""

    async def story() -> None:
        async with serve(tmp_path, {"window_tokens": 30, "rules": [{"text": "ok"}]}) as client:
            for stream in (False, True):
                answer = await client.post({"input": "word " * 100, "stream": stream})
                assert answer.status == 400
                assert answer.error == {
                    "message": "Your input exceeds the context window of this model. Please adjust your input"
                    " and try again. (the prompt has 107 tokens, the window holds 30)",
                    "type": "invalid_request_error",
                    "param": "input",
                    "code": "context_length_exceeded",
                }

    asyncio.run(story())


def test_a_server_that_refuses_after_the_stream_began_fails_it() -> None:
    """Decided: nothing is sent until the upstream's status or `status_wait_s`; after it, events."""
    script = {"rules": [{"error": {"at": "before", "status": 429, "message": "Wait."}}]}
    backend = GatedBackend(script, gate_at=0)

    async def story() -> None:
        async with serve_doubles(backend, status_wait_s=0.01) as client:
            async with client.open_stream(input="Hello.") as events:
                assert (await anext(events))["type"] == "response.created"
                backend.gate.set()
                rest = [event async for event in events]
            assert [event["type"] for event in rest] == ["response.in_progress", "error", "response.failed"]
            assert find_terminal(rest)["error"] == {"code": "rate_limit_exceeded", "message": "Wait."}

    asyncio.run(story())


def test_silence_is_filled_with_numbered_events() -> None:
    """Decided: a keep-alive is a repeated `response.in_progress`; it takes a sequence number."""
    backend = GatedBackend({"rules": [{"text": "One two."}]}, gate_at=2)

    async def story() -> None:
        async with serve_doubles(backend, keep_alive_s=0.01) as client:
            kinds = []
            async with client.open_stream(input="Hello.") as events:
                async for event in events:
                    kinds.append(event["type"])
                    if kinds.count("response.in_progress") == 4:
                        backend.gate.set()
            assert kinds.count("response.in_progress") >= 4
            assert kinds[-1] == "response.completed"
            last = len(kinds) - 1 - kinds[::-1].index("response.in_progress")
            assert TEXT in kinds[:last], "the keep-alives came in the middle of the text"

    asyncio.run(story())


def test_a_stream_that_waits_for_its_status_is_kept_alive_too() -> None:
    """Decided: a slow model server is silence like any other."""
    backend = GatedBackend({"rules": [{"text": "One two."}]}, gate_at=0)

    async def story() -> None:
        async with serve_doubles(backend, keep_alive_s=0.01, status_wait_s=0) as client:
            kinds = []
            async with client.open_stream(input="Hello.") as events:
                async for event in events:
                    kinds.append(event["type"])
                    if kinds.count("response.in_progress") == 3:
                        backend.gate.set()
            assert kinds[-1] == "response.completed"

    asyncio.run(story())


def test_a_client_that_leaves_stops_the_model_and_leaves_a_cancelled_response() -> None:
    """Decided: a foreground response whose client left is stored as cancelled, and is no parent."""
    backend = GatedBackend({"rules": [{"when": "stop", "text": "One two."}, {"text": "ok"}]}, gate_at=2)

    async def story() -> None:
        async with serve_doubles(backend) as client:
            async with client.open_stream(input="stop") as events:
                first = await anext(events)
                while (await anext(events))["type"] != TEXT:
                    pass
                await backend.waiting.wait()
            assert backend.streams_open == 0
            read = await client.retrieve(first["response"]["id"])
            assert read.status == 200
            assert read.body["status"] == "cancelled"
            assert read_text(read.body) == "One "
            assert read.body["output"][0]["status"] == "incomplete"
            error = await client.refuse(input="Go on.", previous_response_id=read.body["id"])
            assert error["code"] == "previous_response_not_found"
            assert "cancelled" in error["message"]

    asyncio.run(story())


def test_a_client_that_leaves_before_the_first_event_stops_the_model_too() -> None:
    """Decided, while the upstream has not answered yet; streaming and not."""
    backend = GatedBackend({"rules": [{"text": "One two."}]}, gate_at=1)

    async def story() -> None:
        async with serve_doubles(backend) as client:
            for stream in (False, True):
                backend.waiting.clear()
                task = asyncio.create_task(client.post({"input": "Hello.", "stream": stream}))
                await backend.waiting.wait()
                task.cancel()
                await asyncio.wait({task}, timeout=WAIT_S)
                assert task.cancelled()
                assert backend.streams_open == 0

    asyncio.run(story())


def test_streaming_and_not_streaming_give_the_same_response(tmp_path: Path) -> None:
    """Ours: one engine; a collected response is the stream's last word."""
    answer = {
        "reasoning": "Let me think.",
        "text": "I look.",
        "calls": [{"name": "look", "arguments": {"at": 1}}, {"name": "look", "arguments": {"at": 2}}],
    }
    other = tmp_path / "other"
    other.mkdir()
    streamed = find_terminal(run_answer(tmp_path, answer, tools=[TOOL]))
    collected = collect_answer(other, answer, tools=[TOOL])
    assert strip(streamed) == strip(collected)


def test_obfuscation_is_sent_only_when_it_was_asked_for(tmp_path: Path) -> None:
    """Decided; the checking client refuses padding that nobody asked for."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"reasoning": "Hm.", "text": "One two three."}]}) as client:
            padded = await client.stream(input="Hello.", stream_options={"include_obfuscation": True})
            assert all(event["obfuscation"] for event in padded if event["type"].endswith(".delta"))
            for options in ({"include_obfuscation": False}, {}, None):
                await client.stream(input="Hello.", stream_options=options)

    asyncio.run(story())


def test_logprobs_come_when_they_are_included(tmp_path: Path) -> None:
    """Responses API 2 and 3.3: with `include`, in the deltas, the done event and the item."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"text": "One two."}]}) as client:
            include = ["message.output_text.logprobs"]
            events = await client.stream(input="Hello.", include=include, top_logprobs=2)
            response = find_terminal(events)
            told = [event["logprobs"] for event in events if event["type"] == TEXT]
            assert [len(entries) for entries in told] == [1, 1]
            entries = response["output"][0]["content"][0]["logprobs"]
            assert [entry["token"] for entry in entries] == ["One ", "two."]
            assert [len(entry["top_logprobs"]) for entry in entries] == [1, 1]
            assert response["top_logprobs"] == 2
            collected = await client.create(input="Hello.", include=include)
            assert collected["output"][0]["content"][0]["logprobs"][0]["top_logprobs"] == []
            bare = await client.create(input="Hello.", include=[])
            assert bare["output"][0]["content"][0]["logprobs"] == []

    asyncio.run(story())


@pytest.mark.parametrize("told", [False, {"input_tokens": 5, "output_tokens": 2}])
def test_counts_that_the_backend_did_not_tell_are_named(tmp_path: Path, told: Any) -> None:
    """Decided: no usage is null; details are 0 where untold, and `usage_untold` names them."""
    response = collect_answer(tmp_path, {"text": "Hi.", "usage": told})
    if told is False:
        assert response["usage"] is None
        assert "antiphon" not in response
        return
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert response["antiphon"]["usage_untold"] == ["cached_tokens", "cache_write_tokens", "reasoning_tokens"]


def test_a_backend_that_truncates_silently_is_reported(tmp_path: Path) -> None:
    """Decided: an append-only window grew and the backend's prompt count did not."""

    async def story() -> None:
        answers = [
            {"text": "One.", "usage": {"input_tokens": 100, "output_tokens": 2}},
            {"text": "Two.", "usage": {"input_tokens": 100, "output_tokens": 2}},
            {"text": "Three.", "usage": {"input_tokens": 140, "output_tokens": 2}},
        ]
        async with serve(tmp_path, {"answers": answers}) as client:
            tip, warned = None, []
            for _ in answers:
                response = await client.create(input="Hello.", previous_response_id=tip)
                tip = response["id"]
                warned.append([each["code"] for each in response["antiphon"].get("warnings", [])])
            assert warned == [[], ["upstream_truncated"], []]

    asyncio.run(story())


@pytest.mark.parametrize(
    "text",
    [
        {"format": {"type": "json_object"}},
        {"format": {"type": "json_object"}, "verbosity": "medium"},
        {
            "format": {
                "type": "json_schema",
                "name": "answer",
                "schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
                "strict": False,
                "description": "A number.",
            }
        },
    ],
)
def test_a_text_format_reaches_the_backend_and_is_echoed(text: dict[str, Any]) -> None:
    """Responses API 2, text: echoed as sent, verbosity filled in."""
    backend = GatedBackend({"rules": [{"text": '{"n": 1}'}]})

    async def story() -> Ask:
        async with serve_doubles(backend) as client:
            response = await client.create(input="Hello.", text=text)
            assert response["text"] == {"verbosity": "medium", **text}
            assert (await client.retrieve(response["id"])).body == response
        return backend.asks[0]

    ask = asyncio.run(story())
    assert ask.text_format is not None
    assert ask.text_format.type == text["format"]["type"]
    assert ask.text_format.schema == text["format"].get("schema")


def test_text_of_every_kind_survives_streaming(tmp_path: Path) -> None:
    """Ours: characters of any length, and those that look like framing."""
    text = 'data: {"a": "b\\n"}\r\n\n\nevent: x é 日本語 😀 \u2028 \x7f " \\ \t end'
    events = run_answer(tmp_path, {"texts": list(text)})
    assert join_deltas(events, TEXT) == read_text(find_terminal(events)) == text


class HeldStore(MemoryStore):
    """A store that takes its time to write."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        self.waiting.set()
        await self.gate.wait()
        await super().record(record, conversation=conversation)


def test_a_stream_is_kept_alive_while_its_response_is_stored() -> None:
    """Decided: stored before its terminal event leaves, and silence is filled meanwhile."""
    store = HeldStore()

    async def story() -> None:
        async with serve_doubles(
            GatedBackend({"rules": [{"text": "One two."}]}), store, keep_alive_s=0.01
        ) as client:
            kinds = []
            async with client.open_stream(input="Hello.") as events:
                async for event in events:
                    kinds.append(event["type"])
                    if not store.gate.is_set() and kinds.count("response.in_progress") == 4:
                        assert store.waiting.is_set()
                        assert "response.completed" not in kinds
                        store.gate.set()
            assert kinds[-1] == "response.completed"

    asyncio.run(story())


def test_a_client_that_leaves_while_its_response_is_stored_finds_all_or_nothing() -> None:
    """Decided, store interface: a cancelled call may or may not have kept the round; never half."""
    store = HeldStore()

    async def story() -> None:
        async with serve_doubles(GatedBackend({"rules": [{"text": "One two."}]}), store) as client:
            async with client.open_stream(input="Hello.") as events:
                first = await anext(events)
                await store.waiting.wait()
                store.gate.set()
            answer = await client.retrieve(first["response"]["id"])
            if answer.status == 200:
                assert answer.body["status"] == "completed"
                assert read_text(answer.body) == "One two."

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_at_any_moment_leave_nothing_running(
    tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided: at whichever step of the loop; what is stored is whole, and the model has stopped."""
    backend = GatedBackend({"rules": [{"text": "One two three four."}]})
    store = SqliteStore.open(tmp_path)

    async def story() -> None:
        async with serve_doubles(backend, store) as client:
            body = json.dumps({"model": "scripted", "input": "Hello.", "stream": stream}).encode()
            left = 0
            for steps in range(60):
                task = asyncio.create_task(client.exchange(body))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task}, timeout=WAIT_S)
                assert task.done(), f"after {steps} steps"
                left += task.cancelled()
                assert task.cancelled() or not task.exception()
                assert backend.streams_open == 0, f"after {steps} steps"
            assert left > 10
            assert read_text(await client.create(input="Hello.")) == "One two three four."

    asyncio.run(story())
    assert caplog.text == ""


def test_fifty_clients_that_leave_together_leave_nothing_running(tmp_path: Path) -> None:
    """Ours: the same in a crowd, at random moments; those who stay get their answers."""
    backend = GatedBackend({"rules": [{"text": "One two three four."}]})
    store = SqliteStore.open(tmp_path)
    choice = random.Random(3)

    async def leave(client: StrictClient, number: int) -> bool:
        body = json.dumps({"model": "scripted", "input": "Hello.", "stream": bool(number % 2)}).encode()
        task = asyncio.create_task(client.exchange(body))
        for _ in range(choice.randrange(200)):
            await asyncio.sleep(0)
        if number % 5:
            task.cancel()
        await asyncio.wait({task}, timeout=WAIT_S)
        return task.cancelled()

    async def story() -> None:
        async with serve_doubles(backend, store) as client:
            left = await asyncio.gather(*(leave(client, number) for number in range(50)))
            assert not any(left[::5])
            assert any(left)
            assert backend.streams_open == 0
            assert read_text(await client.create(input="Hello.")) == "One two three four."

    asyncio.run(story())
