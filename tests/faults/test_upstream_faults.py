"""A model server that fails, in every way: each fault becomes the right error, once, and nothing leaks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask, BackendEvent, BackendUsage, Failed, Finished, Opened, TextDelta, exchange
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.errors import (
    AntiphonError,
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    BackendRefusedError,
    BackendTimeoutError,
    ContextOverflowError,
    RequestError,
)
from antiphon.protocol.items import make_user_message
from tests.fake_upstream import (
    END,
    MODEL,
    TIMEOUT_S,
    Answer,
    FakeUpstream,
    Reply,
    Request,
    frame,
    make_body,
    make_chunk,
    make_head,
    make_json,
    make_stream,
)
from tests.wire import read_http

KEY = "sk-upstream-0123456789"
#: Short enough to be waited for, long enough for a busy machine.
SILENCE_S = 0.3


def make_ask(profile: Profile | None = None) -> Ask:
    """One user message."""
    profile = profile or PROFILES["default"]
    segment = transcribe([make_user_message("Hi")], profile, at_start=True)
    return Ask(model=MODEL, profile=profile, transcript=[segment.body])


def run(
    answer: Answer, work: Callable[[ChatCompletionsBackend, FakeUpstream], Awaitable[Any]], **endpoint: Any
) -> Any:
    """Work with a backend before a server; bounded."""

    async def main() -> Any:
        async with FakeUpstream(answer) as upstream:
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url, key=KEY, **endpoint))
            try:
                return await work(backend, upstream)
            finally:
                await backend.close()

    return asyncio.run(asyncio.wait_for(main(), 3 * TIMEOUT_S))


async def collect(backend: ChatCompletionsBackend, ask: Ask | None = None) -> list[BackendEvent]:
    """The events of one answer."""
    return [event async for batch in backend.stream(ask or make_ask()) for event in batch]


def ask_once(answer: Answer | Reply, **endpoint: Any) -> list[BackendEvent] | AntiphonError:
    """What one request gives: events, or the error that was raised before any."""

    async def work(backend: ChatCompletionsBackend, _: FakeUpstream) -> Any:
        try:
            return await collect(backend)
        except AntiphonError as error:
            return error

    got: list[BackendEvent] | AntiphonError = run(
        (lambda _: answer) if isinstance(answer, Reply) else answer, work, **endpoint
    )
    return got


def fail(reply: Reply, **endpoint: Any) -> AntiphonError:
    """The error that a reply must lead to before any event."""
    error = ask_once(reply, **endpoint)
    assert isinstance(error, AntiphonError), error
    return error


def break_after(reply: Reply, **endpoint: Any) -> tuple[list[BackendEvent], AntiphonError]:
    """The events before the failure, and its error, for a reply that begins well."""
    events = ask_once(reply, **endpoint)
    assert isinstance(events, list), events
    *before, last = events
    assert isinstance(last, Failed)
    assert before[0] == Opened()
    return before[1:], last.error


BODIES: tuple[bytes, ...] = (
    b"",
    b"plain words",
    b"<html><body>Bad Gateway</body></html>",
    b"null",
    b"7",
    b"[]",
    b'"words"',
    b"{}",
    b'{"error":null}',
    b'{"error":"words"}',
    b'{"error":{}}',
    b'{"error":{"message":"words","type":"x","param":null,"code":null}}',
    b'{"error":{"message":{"deep":["words"]},"code":7}}',
    b'{"error":[1,2]}',
    b'[{"error":{"message":"words","status":"INVALID_ARGUMENT","code":400}}]',
    b'{"object":"error","message":"words","code":40001}',
    b'{"detail":"words"}',
    b'{"detail":[{"loc":["body","x"],"msg":"words"}]}',
    b'{"message":"words"}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"error":' * 2000,
    b"words " * 100_000,
)

TREE: tuple[tuple[int, type[AntiphonError], int, str], ...] = (
    (307, BackendError, 502, "server_error"),
    (400, BackendRefusedError, 400, "invalid_prompt"),
    (401, BackendAuthError, 500, "server_error"),
    (402, BackendRateLimitError, 429, "insufficient_quota"),
    (403, BackendAuthError, 500, "server_error"),
    (404, BackendError, 502, "server_error"),
    (405, BackendRefusedError, 400, "invalid_prompt"),
    (408, BackendTimeoutError, 504, "server_error"),
    (413, BackendRefusedError, 400, "invalid_prompt"),
    (415, BackendRefusedError, 400, "invalid_prompt"),
    (422, BackendRefusedError, 400, "invalid_prompt"),
    (429, BackendRateLimitError, 429, "rate_limit_exceeded"),
    (500, BackendError, 502, "server_error"),
    (501, BackendError, 502, "server_error"),
    (502, BackendError, 502, "server_error"),
    (503, BackendError, 502, "server_is_overloaded"),
    (504, BackendTimeoutError, 504, "server_error"),
    (529, BackendError, 502, "server_is_overloaded"),
)


@pytest.mark.parametrize(("status", "kind", "ours", "code"), TREE)
def test_every_status_with_every_body_is_the_right_error(
    status: int, kind: type[AntiphonError], ours: int, code: str
) -> None:
    """Decided: backend down or 5xx 502, time-out 504, its 401 and 403 500, 429 passed on, a refusal 400."""
    bodies = iter(BODIES)

    def answer(_: Request) -> Reply:
        return Reply([make_body(next(bodies), status=status, content_type="application/json")])

    async def work(backend: ChatCompletionsBackend, _: FakeUpstream) -> None:
        for body in BODIES:
            with pytest.raises(AntiphonError) as raised:
                await collect(backend)
            error = raised.value
            assert (type(error), error.status, error.to_response_error()["code"]) == (kind, ours, code), body
            assert len(error.message) < 1200
            assert "<html" not in error.message
            if b"words" in body and kind in (BackendRefusedError, BackendRateLimitError, BackendTimeoutError):
                assert "words" in error.message

    run(answer, work)


@pytest.mark.parametrize(
    ("name", "kind", "numbers"),
    [
        ("llama.cpp/overflow.http", ContextOverflowError, (931, 512)),
        ("vllm/overflow.http", ContextOverflowError, (4097, 4096)),
        ("openai/overflow.http", ContextOverflowError, (9001, 8192)),
        ("vllm/unknown_model.http", RequestError, None),
    ],
)
def test_a_recorded_refusal_is_the_right_error(name: str, kind: Any, numbers: Any) -> None:
    """The fixtures' own provenance."""
    error = fail(Reply([read_http(name)]))
    assert type(error) is kind
    if isinstance(error, ContextOverflowError):
        assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
        assert (error.prompt_tokens, error.window_tokens) == numbers
    else:
        assert (error.param, error.code) == ("model", "model_not_found")


def test_a_vllm_server_is_asked_for_the_exact_count() -> None:
    """vLLM stops counting at its limit (measured), and counts exactly on its own route."""

    class Counting(FakeUpstream):
        def reply(self, request: Request) -> Reply:
            if request.path == "/tokenize":
                return Reply([make_json({"count": 12030, "max_model_len": 4096, "tokens": []})])
            return super().reply(request)

    async def main() -> None:
        async with Counting(lambda _: Reply([read_http("vllm/overflow.http")])) as upstream:
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url))
            with pytest.raises(ContextOverflowError) as raised:
                await collect(backend, make_ask(PROFILES["vllm"]))
            await backend.close()
            assert (raised.value.prompt_tokens, raised.value.window_tokens) == (12030, 4096)
            assert not raised.value.at_least

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ("7", {"retry-after": "7"}),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        ("\xe9", {}),
        ("9" * 100, {}),
    ],
)
def test_retry_after_is_passed_on_where_it_can_be_one(sent: str, passed: dict[str, str]) -> None:
    """Decided: 429 is passed on with `retry-after`."""
    reply = make_head(429, content_type="application/json", length=2).replace(
        b"\r\n\r\n", b"\r\nretry-after: " + sent.encode("latin-1") + b"\r\n\r\n"
    )
    error = fail(Reply([reply + b"{}"]))
    assert (error.status, error.headers) == (429, passed)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_our_key_is_in_no_error_and_no_log(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Ours: servers quote keys; neither clients nor logs get to see ours, nor the text of a 401."""
    caplog.set_level(logging.DEBUG)
    text = f"Incorrect API key provided: {KEY}. Find yours at example.com."
    error = fail(Reply([make_json({"error": {"message": text}}, status=status)]))
    seen = f"{error.message} {error!r} {error.to_body()!r} {error.to_response_error()} {caplog.text}"
    assert KEY not in seen
    if status in (401, 403):
        assert "example.com" not in seen
        assert "fake" in caplog.text
        assert "key_env" in caplog.text


def test_our_key_is_in_no_failure_in_mid_stream() -> None:
    """The same after the first event."""
    steps = [make_head(), frame(b'data: {"error":{"message":"key ' + KEY.encode() + b' is bad"}}\n\n'), END]
    _, error = break_after(Reply(steps))
    assert error.message == "The model server failed while answering: key *** is bad"


def test_our_key_is_sent_and_nothing_else_about_us() -> None:
    """Ours: the request's head."""

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> dict[str, str]:
        await collect(backend)
        return upstream.asked[0].headers

    headers = run(lambda _: Reply(make_stream("Hi")), work)
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"
    assert headers["content-type"] == "application/json"


def test_a_server_that_is_down_is_a_502() -> None:
    """Decided."""

    async def main() -> None:
        async with FakeUpstream(lambda _: Reply([])) as upstream:
            url = upstream.url
        backend = ChatCompletionsBackend(Endpoint(name="fake", url=url))
        for work in (collect(backend), backend.list_models()):
            with pytest.raises(BackendError) as raised:
                await work
            assert (type(raised.value), raised.value.status) == (BackendError, 502)
            assert "cannot be reached" in raised.value.message
        assert (await backend.get_facts("m")).profile == Profile()
        await backend.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


@pytest.mark.parametrize(
    "steps",
    [[], [b"HTTP/1.1 200 OK\r\ncontent-"], [make_head(500, content_type="application/json", length=9)]],
    ids=["before the head", "in the head", "in an error's body"],
)
def test_silence_before_the_answer_is_bounded(steps: Sequence[bytes]) -> None:
    """Decided: time-out 504; an error whose text never comes is told without it."""
    error = fail(Reply(steps, end="hold"), idle_timeout_s=SILENCE_S)
    assert error.status == (504 if len(steps) == 0 or b"500" not in steps[0] else 502)


def test_silence_in_mid_stream_is_one_failure() -> None:
    """Ours: what came is kept, the rest is a time-out."""
    steps = [make_head(), make_chunk({"content": "Half"})]
    before, error = break_after(Reply(steps, end="hold"), idle_timeout_s=SILENCE_S)
    assert before == [TextDelta("Half")]
    assert type(error) is BackendTimeoutError
    assert error.message == f"The model server of endpoint 'fake' was silent for {SILENCE_S} s."


@pytest.mark.parametrize("ping", [b": ping\n\n", b":", b":\n", b"\n\n"])
def test_comments_alone_keep_an_answer_alive_for_longer_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, ping: bytes
) -> None:
    """Ours: llama.cpp and others send them over a long prompt; the longer bound is tried with no time at all."""
    monkeypatch.setattr(exchange, "QUIET_FACTOR", 0)
    steps = [make_head(), make_chunk({"content": "Half"}), frame(ping)]
    before, error = break_after(Reply(steps, end="hold"), idle_timeout_s=TIMEOUT_S)
    assert before == [TextDelta("Half")]
    assert type(error) is BackendTimeoutError
    assert "only comments" in error.message


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_that_breaks_in_mid_stream_is_one_failure(end: Any) -> None:
    """Ours."""
    before, error = break_after(Reply([make_head(), make_chunk({"content": "Half"})], end=end))
    assert before == [TextDelta("Half")]
    assert (type(error), error.status) == (BackendError, 502)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_that_breaks_before_the_answer_is_a_502(end: Any) -> None:
    """Ours: and a fresh connection is not tried again, or one generation would be paid for twice."""

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> int:
        with pytest.raises(BackendError) as raised:
            await collect(backend)
        assert raised.value.status == 502
        return len(upstream.asked)

    assert run(lambda _: Reply([], end=end), work) == 1


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_whose_end_had_been_seen_is_a_whole_answer(end: Any) -> None:
    """Ours: with the finish reason the answer is whole; what breaks behind it takes nothing away."""
    steps = [make_head(), make_chunk({"content": "Whole."}), make_chunk({}, "stop")]
    assert ask_once(Reply(steps, end=end)) == [Opened(), TextDelta("Whole."), Finished("stop")]


@pytest.mark.parametrize(
    "reply",
    [
        Reply([b"garbage\r\n\r\nmore"], end="close"),
        Reply([b"\x00" * 1000], end="close"),
        Reply([b"HTTP/9.9 999 \r\n\r\n"], end="close"),
        Reply([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"], end="close"),
        Reply([b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"], end="close"),
        Reply([make_body(b"<html>Welcome</html>", content_type="text/html")]),
    ],
    ids=["text", "zeros", "version", "huge header", "bad length", "web page"],
)
def test_garbage_instead_of_an_answer_is_a_502(reply: Reply) -> None:
    """Ours."""
    error = fail(reply)
    assert (type(error), error.status) == (BackendError, 502)


@pytest.mark.parametrize(
    "steps",
    [
        [make_body(b"plain words")],
        [make_body(b"", content_type="text/event-stream")],
        [make_body(b"data: nonsense\n\n", content_type="text/event-stream")],
        [make_body(b'{"choices":', content_type="application/json")],
        [make_body(b"{}", content_type="application/json")],
        [make_body(b'{"error":"x"}', content_type="application/json")],
        [make_head().replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"), frame(b"not gzip"), END],
    ],
)
def test_garbage_inside_an_answer_is_one_failure(steps: Sequence[bytes]) -> None:
    """Ours."""
    before, error = break_after(Reply(steps, end="close"))
    assert before == []
    assert isinstance(error, BackendError)


def test_broken_framing_is_one_error() -> None:
    """Ours: before or after the first event, as the bytes happen to arrive."""
    answer = ask_once(Reply([make_head(), make_chunk({"content": "Half"}), b"zz\r\nnot a chunk\r\n"]))
    error = answer[-1] if isinstance(answer, list) else answer
    assert isinstance(error, Failed | BackendError)


def test_a_huge_event_is_one_failure() -> None:
    """Ours: an event of more than 16 MiB is refused, whatever it holds."""
    piece = frame(b"x" * (1 << 20))
    _, error = break_after(Reply([make_head(), frame(b"data: "), *([piece] * 17)], end="hold"))
    assert error.message == "The model server sent an event that is too large to be one."


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    """llama.cpp's recorded answer to a request without `stream`."""
    events = ask_once(Reply([read_http("llama.cpp/not_streamed.http")], end="close"))
    assert isinstance(events, list)
    assert events[:2] == [Opened(), TextDelta("Hello there! I")]
    assert isinstance(events[2], Finished)


def test_twenty_requests_use_one_connection() -> None:
    """Ours: keep-alive, and no byte of an answer is left on the connection."""

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> int:
        for _ in range(20):
            assert isinstance((await collect(backend))[-1], Finished)
        return upstream.connections

    assert run(lambda _: Reply(make_stream("Hi", " there")), work) == 1


def test_errors_keep_the_connection_too() -> None:
    """Ours: the body of an error is read to its end."""

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> int:
        for _ in range(5):
            with pytest.raises(BackendRefusedError):
                await collect(backend)
        return upstream.connections

    assert run(lambda _: Reply([make_json({"error": {"message": "No."}}, status=400)]), work) == 1


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_stale_connection_is_tried_once_more(end: Any) -> None:
    """Ours: a kept connection that the server closes as the request arrives answered nothing."""

    def answer(request: Request) -> Reply:
        stale = request.connection == 0 and len(numbers) == 1
        numbers.append(request.connection)
        return Reply([], end=end) if stale else Reply(make_stream("Hi"))

    numbers: list[int] = []

    async def work(backend: ChatCompletionsBackend, _: FakeUpstream) -> list[BackendEvent]:
        await collect(backend)
        return await collect(backend)

    assert run(answer, work) == [Opened(), TextDelta("Hi"), Finished("stop")]
    assert numbers == [0, 0, 1]


def test_a_server_that_closes_behind_every_answer_is_no_trouble() -> None:
    """Measured with llama.cpp b11549: it says keep-alive and closes behind every streamed answer."""

    def answer(request: Request) -> Reply:
        text = request.json["messages"][-1]["content"]
        return Reply(make_stream(text), end="close")

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> int:
        for _ in range(10):
            # Several at once, so that several connections are kept, and go stale, together.
            for events in await asyncio.gather(*(collect(backend) for _ in range(3))):
                assert events == [Opened(), TextDelta("Hi"), Finished("stop")]
            assert (await backend.get_facts(MODEL)).name == MODEL
            assert await backend.count_tokens(make_ask(PROFILES["vllm"])) is None
        return len({request.connection for request in upstream.asked})

    assert run(answer, work) == 30


def test_a_second_stale_connection_is_a_502() -> None:
    """Ours: once more, not for ever."""
    replies = iter([Reply(make_stream("Hi")), Reply([], end="close"), Reply([], end="close")])

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> int:
        await collect(backend)
        with pytest.raises(BackendError) as raised:
            await collect(backend)
        assert raised.value.status == 502
        return len(upstream.asked)

    assert run(lambda _: next(replies), work) == 3


@pytest.mark.parametrize(
    "steps",
    [[], [make_head()], [make_head(), make_chunk({"content": "Half"})]],
    ids=["start", "head", "text"],
)
def test_a_cancelled_reader_is_seen_by_the_server(steps: Sequence[bytes]) -> None:
    """Public issue (ollama 11889): generation must stop when the client leaves, before the first byte too."""

    async def work(backend: ChatCompletionsBackend, upstream: FakeUpstream) -> bool:
        task = asyncio.create_task(collect(backend))
        request = await upstream.wait_asked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(request.left.wait(), TIMEOUT_S)
        return request.left.is_set()

    assert run(lambda _: Reply(steps, end="hold"), work)


def test_many_callers_share_one_look_at_a_slow_server() -> None:
    """Ours: a server that does not list its models holds nobody up twice, and one impatient caller takes nothing
    from the others."""

    gate = asyncio.Event()

    class Slow(FakeUpstream):
        def reply(self, request: Request) -> Reply:
            return Reply([gate, *super().reply(request).steps])

    async def main() -> tuple[int, list[Any]]:
        async with Slow(lambda _: Reply([])) as upstream:
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url))
            callers = [asyncio.create_task(backend.list_models()) for _ in range(5)]
            await upstream.wait_requested()
            callers[0].cancel()
            await asyncio.wait({callers[0]})
            gate.set()
            lists = await asyncio.gather(*callers[1:])
            await backend.close()
            return len(upstream.requests), lists

    requests, lists = asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
    assert requests == 1
    assert [[facts.name for facts in each] for each in lists] == [[MODEL]] * 4


@pytest.mark.parametrize(
    ("status", "kind"), [(401, BackendAuthError), (403, BackendAuthError), (503, BackendError)]
)
def test_a_server_that_refuses_to_list_is_not_taken_for_an_empty_one(status: int, kind: Any) -> None:
    """Ours: a wrong key is not an unknown model."""

    class Refusing(FakeUpstream):
        def reply(self, request: Request) -> Reply:
            return Reply([make_json({"error": {"message": KEY}}, status=status)])

    async def main() -> None:
        async with Refusing(lambda _: Reply([])) as upstream:
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url, key=KEY))
            with pytest.raises(BackendError) as raised:
                await backend.list_models()
            assert type(raised.value) is kind
            assert KEY not in raised.value.message
            await backend.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_an_answer_whose_finish_has_come_waits_no_idle_timeout_for_the_end() -> None:
    """Ours: a server that says how it finished and then keeps the stream open; the whole answer is there."""
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    steps = [make_head(), make_chunk({"content": "ok"}, "stop", usage=usage)]
    events = ask_once(Reply(steps, end="hold"), end_timeout_s=0.05, idle_timeout_s=3 * TIMEOUT_S)
    assert events == [Opened(), TextDelta("ok"), Finished("stop", BackendUsage(5, 1))]


@pytest.mark.parametrize("start", range(960, 1001, 5))
def test_no_part_of_our_key_is_passed_on_where_a_long_text_is_cut(start: int) -> None:
    """Ours: texts are cut at 1,000 characters, and a key may stand across that place."""
    body = msgspec.json.encode({"error": {"message": "x" * start + KEY}})
    error = fail(Reply([make_body(body, status=400, content_type="application/json")]))
    assert KEY[:6] not in error.message


def test_a_server_that_has_just_failed_to_list_its_models_is_not_waited_for_again() -> None:
    """Ours: each of several aliases asks for facts; a hanging list must not be waited for by each in turn."""
    connections: list[str] = []

    async def break_off(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append("one")
        writer.close()

    async def main() -> list[str]:
        server = await asyncio.start_server(break_off, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        backend = ChatCompletionsBackend(Endpoint(name="fake", url=f"http://127.0.0.1:{port}/v1"))
        try:
            return [(await backend.get_facts(f"m{number}")).name for number in range(6)]
        finally:
            await backend.close()
            server.close()

    assert asyncio.run(main()) == [f"m{number}" for number in range(6)]
    # The HTTP library repeats a GET once by itself; without memory there would be a look for each name.
    assert 1 <= len(connections) <= 2
