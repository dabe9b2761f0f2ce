"""Chunks of real servers -> backend events: whole recorded answers, and what every cut of them must keep."""

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import (
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    answer,
)
from antiphon.backends.answer import AnswerReader
from antiphon.backends.chat_completions.decode import ChatDecoder
from antiphon.protocol.errors import (
    AntiphonError,
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    ContextOverflowError,
)
from tests.wire import ANSWERS, FOLDER, MANIFEST, merge, play, read_wire

OVERFLOW = "Your input exceeds the context window of this model. Please adjust your input and try again."


class Failure(NamedTuple):
    """What is compared of a `Failed` event."""

    error: type[AntiphonError]
    message: str


#: Fixture -> its events, neighbouring pieces joined.
EXPECTED: dict[str, list[Any]] = {
    "llama.cpp/error_in_stream.sse": [
        TextDelta("Half an"),
        Failure(
            ContextOverflowError,
            OVERFLOW,
        ),
    ],
    "llama.cpp/logprobs.http": [
        TextDelta(
            "Hello there",
            [
                {
                    "token": "Hello",
                    "bytes": [72, 101, 108, 108, 111],
                    "logprob": -2.081272840499878,
                    "top_logprobs": [
                        {"token": "Hello", "bytes": [72, 101, 108, 108, 111], "logprob": -2.081272840499878},
                        {"token": "I", "bytes": [73], "logprob": -2.2841155529022217},
                    ],
                },
                {
                    "token": " there",
                    "bytes": [32, 116, 104, 101, 114, 101],
                    "logprob": -0.8692681789398193,
                    "top_logprobs": [
                        {
                            "token": " there",
                            "bytes": [32, 116, 104, 101, 114, 101],
                            "logprob": -0.8692681789398193,
                        },
                        {"token": "!", "bytes": [33], "logprob": -1.1703832149505615},
                    ],
                },
            ],
        ),
        Finished("length", BackendUsage(33, 2, cached_tokens=32)),
    ],
    "llama.cpp/not_streamed.http": [
        TextDelta("Hello there! I"),
        Finished("length", BackendUsage(33, 4, cached_tokens=32)),
    ],
    "llama.cpp/progress.http": [Finished("stop", BackendUsage(331, 1, cached_tokens=0))],
    "llama.cpp/stop.http": [
        TextDelta("Hello! How can I assist you today?"),
        Finished("stop", BackendUsage(31, 10, cached_tokens=24)),
    ],
    "llama.cpp/text.http": [
        TextDelta("Hello there! I'm here to help"),
        Finished("length", BackendUsage(33, 8, cached_tokens=0)),
    ],
    "llama.cpp/timings.http": [
        TextDelta("Hello there! I"),
        Finished("length", BackendUsage(33, 4, cached_tokens=24)),
    ],
    "llama.cpp/tool_call.sse": [
        CallDelta(0, "Xy3", "get_weather", '{"city":"Oslo"}'),
        Finished("stop", BackendUsage(36, 12, cached_tokens=35)),
    ],
    "llama.cpp/window_filled.http": [
        TextDelta(
            "assistant\nuser\nuser\nYou can use a empty list of the* to"
            + " create a empty list of* to" * 4
            + " create a list of* to" * 2
            + " create"
        ),
        Finished("length", BackendUsage(451, 61, cached_tokens=24)),
    ],
    "lm-studio/error_event.sse": [
        TextDelta("Hi"),
        Failure(
            BackendError,
            "The model server failed while answering: The model has crashed without additional information.",
        ),
    ],
    "lm-studio/error_event_flat.sse": [
        TextDelta("Hi"),
        Failure(
            ContextOverflowError,
            f"{OVERFLOW} (the window holds 4096)",
        ),
    ],
    "lm-studio/reasoning_content.sse": [
        ReasoningDelta("Let me see."),
        TextDelta("Four."),
        Finished("stop", BackendUsage(9, 7, reasoning_tokens=4)),
    ],
    "lm-studio/text.sse": [TextDelta("Hi!"), Finished("stop", BackendUsage(9, 2))],
    "lm-studio/tool_call.sse": [CallDelta(0, "315063", "get_weather", '{"city":"Oslo"}'), Finished("stop")],
    "ollama/calls_in_one_piece.sse": [
        CallDelta(0, "call_a", "get_weather", '{"city":"Oslo"}'),
        CallDelta(1, "call_b", "get_time", "{}"),
        Finished("stop", BackendUsage(90, 30)),
    ],
    "ollama/error_line.sse": [
        ReasoningDelta("Let me"),
        Failure(
            BackendError,
            "The model server failed while answering: an error was encountered while running the model: unexpected EOF",
        ),
    ],
    "ollama/prompt_not_counted.sse": [TextDelta("Hi"), Finished("stop")],
    "ollama/reasoning.sse": [
        ReasoningDelta("Hmm."),
        TextDelta("Yes."),
        Finished("stop", BackendUsage(12, 5)),
    ],
    "ollama/text.sse": [TextDelta("Hello"), Finished("stop", BackendUsage(26, 3))],
    "ollama/text_beside_call.sse": [
        TextDelta("I look it up."),
        CallDelta(0, "call_a", "get_time", "{}"),
        Finished("stop", BackendUsage(90, 30)),
    ],
    "ollama/think_tags.sse": [
        ReasoningDelta("Easy. "),
        TextDelta("Four."),
        Finished("stop", BackendUsage(12, 9)),
    ],
    "openai/content_filter.sse": [TextDelta("Once"), Finished("content_filter")],
    "openai/logprobs.sse": [
        TextDelta(
            "Yes",
            [
                {
                    "token": "Yes",
                    "bytes": [89, 101, 115],
                    "logprob": -0.1,
                    "top_logprobs": [
                        {"token": "Yes", "bytes": [89, 101, 115], "logprob": -0.1},
                        {"token": "No", "bytes": [78, 111], "logprob": -2.5},
                    ],
                }
            ],
        ),
        Finished("stop"),
    ],
    "openai/parallel_fragments.sse": [
        CallDelta(0, "call_1", "get_weather", '{"ci'),
        CallDelta(1, "call_2", "get_time", ""),
        CallDelta(0, "call_1", "get_weather", 'ty":"Oslo"}'),
        CallDelta(1, "call_2", "get_time", "{}"),
        Finished("stop"),
    ],
    "openai/refusal.sse": [
        RefusalDelta("I can't help."),
        Finished("stop", BackendUsage(14, 6, cached_tokens=0, reasoning_tokens=0)),
    ],
    "others/arguments_as_object.sse": [
        CallDelta(0, "a1", "get_weather", '{"city":"Oslo"}'),
        Finished("stop"),
    ],
    "others/broken_finish.sse": [
        TextDelta("Half an"),
        Failure(BackendError, "The model server ended with finish reason 'error'."),
    ],
    "others/content_in_parts.sse": [ReasoningDelta("Hm."), TextDelta("Yes."), Finished("stop")],
    "others/crlf.sse": [TextDelta("Hi there"), Finished("stop")],
    "others/done_without_finish.sse": [TextDelta("Hi"), Finished("stop")],
    "others/error_null.sse": [TextDelta("Hi"), Finished("stop")],
    "others/finish_without_done.sse": [TextDelta("Hi"), Finished("stop")],
    "others/garbage_chunk.sse": [
        TextDelta("Hi"),
        Failure(BackendError, "The model server sent a chunk that cannot be read: Input data was truncated."),
    ],
    "others/keep_alive_comments.sse": [TextDelta("Hi"), Finished("stop", BackendUsage(7, 1))],
    "others/missing_ids.sse": [
        CallDelta(0, "", "get_weather", '{"city":"Oslo"}'),
        CallDelta(1, "", "get_weather", '{"city":"Rome"}'),
        CallDelta(2, "", "get_time", ""),
        Finished("stop"),
    ],
    "others/missing_index.sse": [
        CallDelta(0, "a1", "get_weather", '{"city":"Oslo"}'),
        CallDelta(1, "a2", "get_time", "{}"),
        Finished("stop"),
    ],
    "others/name_repeated.sse": [CallDelta(0, "a1", "get_weather", '{"city":"Oslo"}'), Finished("stop")],
    "others/no_end.sse": [
        TextDelta("Half an"),
        Failure(BackendError, "The model server closed the stream before the end of its answer."),
    ],
    "others/thinking_field.sse": [ReasoningDelta("Hm."), TextDelta("Yes."), Finished("stop")],
    "vllm/error_in_stream.sse": [
        TextDelta("So"),
        Failure(BackendError, "The model server failed while answering: EngineCore encountered an issue."),
    ],
    "vllm/named_call.sse": [
        CallDelta(0, "chatcmpl-tool-1", "get_weather", '{"city": "Oslo"}'),
        Finished("stop", BackendUsage(40, 9, cached_tokens=0, cache_write_tokens=0)),
    ],
    "vllm/new_id_with_every_fragment.sse": [
        CallDelta(0, "chatcmpl-tool-1", "get_weather", '{"city": "Oslo"}'),
        Finished("stop"),
    ],
    "vllm/parallel_calls.sse": [
        CallDelta(0, "chatcmpl-tool-1", "get_weather", '{"city": "Oslo"}'),
        CallDelta(1, "chatcmpl-tool-2", "get_weather", '{"city": "Rome"}'),
        Finished("stop", BackendUsage(40, 20, cached_tokens=0, cache_write_tokens=0)),
    ],
    "vllm/reasoning.sse": [
        ReasoningDelta("Two and two."),
        TextDelta("Four."),
        Finished("stop", BackendUsage(148, 6, cached_tokens=128, reasoning_tokens=4)),
    ],
    "vllm/text.sse": [
        TextDelta("The word."),
        Finished("stop", BackendUsage(36, 3, cached_tokens=0, cache_write_tokens=0)),
    ],
}


def show(events: list[BackendEvent]) -> list[Any]:
    """Events as `EXPECTED` writes them."""
    return [
        Failure(type(event.error), event.error.message) if isinstance(event, Failed) else event
        for event in merge(events)
    ]


def count_terminals(events: list[BackendEvent]) -> int:
    """How many terminal events there are."""
    return sum(isinstance(event, Finished | Failed) for event in events)


def decode(*chunks: Any, think_tags: bool = True, window_tokens: int | None = None) -> list[Any]:
    """The events of chunks given as values, `[DONE]` behind them."""
    decoder = ChatDecoder(think_tags=think_tags, window_tokens=window_tokens)
    events: list[BackendEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk if isinstance(chunk, bytes) else msgspec.json.encode(chunk))
    return show(events + decoder.feed(b"[DONE]"))


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def test_every_fixture_is_in_the_manifest_and_every_answer_in_the_table() -> None:
    """Ours: a fixture says where it comes from."""
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert files - {"fixtures.toml"} == set(MANIFEST)
    assert {entry["source"] for entry in MANIFEST.values()} == {"real", "documentation"}
    assert all(entry["how"] for entry in MANIFEST.values())
    assert set(EXPECTED) == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_gives_exactly_these_events(name: str) -> None:
    """Provenance: the fixture's own entry in the manifest."""
    assert show(play(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", ANSWERS)
@given(data=st.data())
def test_any_cut_of_an_answer_gives_the_same_events(name: str, data: st.DataObject) -> None:
    """Ours: where the network cuts is nobody's business."""
    body = read_wire(name).body
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert show(play(name, pieces)) == EXPECTED[name]


def test_an_answer_byte_by_byte_gives_the_same_events() -> None:
    """Ours: the extreme of the cuts."""
    for name in ANSWERS:
        body = read_wire(name).body
        assert show(play(name, [body[at : at + 1] for at in range(len(body))])) == EXPECTED[name], name


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.faults_long)])
def test_every_prefix_of_every_answer_ends_with_one_terminal_event(step: int) -> None:
    """The contract of a backend, walked by n bytes; what ended before its end is never `Finished` by guess."""
    runs = 0
    for name in ANSWERS:
        body = read_wire(name).body
        whole = show(play(name))
        for n in range(0, len(body) + 1, step):
            events = play(name, [body[:n]])
            assert count_terminals(events) == 1, (name, n)
            assert isinstance(events[-1], Finished | Failed), (name, n)
            if isinstance(events[-1], Finished):
                assert show(events)[:-1] == whole[:-1], (name, n)
            runs += 1
    print(f"n = 0, {step}, ... of {len(ANSWERS)} answers; one terminal event in {runs} of {runs} runs")


def test_every_broken_prefix_ends_with_one_terminal_event() -> None:
    """The same where the connection breaks instead of ending."""
    for name in ANSWERS:
        body = read_wire(name).body
        for n in range(0, len(body) + 1, 7):
            reader = AnswerReader(ChatDecoder(think_tags=True, window_tokens=None), streamed=True)
            events = reader.feed(body[:n])
            if not reader.ended:
                events += reader.break_off(BackendError("gone"))
            assert count_terminals(events) == 1, (name, n)
            assert reader.ended
            assert reader.feed(b"data: [DONE]\n\n") + reader.close() == []


@given(
    thought=st.text(alphabet="ab<>/thinkr \n", max_size=30),
    text=st.text(alphabet="ab<>/think \n", max_size=30),
    cuts=st.lists(st.integers(0, 90), max_size=8),
)
def test_think_tags_may_be_cut_anywhere(thought: str, text: str, cuts: list[int]) -> None:
    """Ours: however the tags are cut, the same text is reasoning and the same is not."""
    content = f"<think>\n{thought}</think>\n\n{text}"
    places = sorted(cut for cut in cuts if cut < len(content))
    pieces = [content[a:b] for a, b in zip([0, *places], [*places, len(content)], strict=True)]
    assert decode(*(chunk({"content": piece}) for piece in pieces)) == decode(chunk({"content": content}))


@pytest.mark.parametrize(
    ("content", "events"),
    [
        ("<think>a</think>b", [ReasoningDelta("a"), TextDelta("b")]),
        ("\n <think>\na\n</think>\n\nb", [ReasoningDelta("a\n"), TextDelta("b")]),
        ("<think>\n\n</think>\n\nb", [TextDelta("b")]),
        ("<think>never closed", [ReasoningDelta("never closed")]),
        ("<think>half a tag </thi", [ReasoningDelta("half a tag </thi")]),
        ("<thin", [TextDelta("<thin")]),
        ("I <think> so </think>.", [TextDelta("I <think> so </think>.")]),
        ("<thinking>x", [TextDelta("<thinking>x")]),
        ("  ", [TextDelta("  ")]),
    ],
)
def test_a_think_tag_counts_only_at_the_head_of_an_answer(content: str, events: list[Any]) -> None:
    """Ours: a tag inside a text is text, and nothing is lost."""
    assert decode(chunk({"content": content})) == [*events, Finished("stop")]


def test_think_tags_are_text_where_the_profile_says_so() -> None:
    """Profile.think_tags."""
    events = decode(chunk({"content": "<think>a</think>"}), think_tags=False)
    assert events == [TextDelta("<think>a</think>"), Finished("stop")]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("eos_token", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_a_finish_reason_says_how_the_generation_ended(finish: str, reason: Any) -> None:
    """Finish reasons of OpenAI, Mistral, z.ai and text-generation servers."""
    assert decode(chunk({}, finish)) == [Finished(reason)]


@pytest.mark.parametrize("finish", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_a_broken_finish_reason_is_a_failure(finish: str) -> None:
    """vLLM, OpenRouter, z.ai, DeepSeek."""
    message = f"The model server ended with finish reason '{finish}'."
    assert decode(chunk({}, finish)) == [Failure(BackendError, message)]


@pytest.mark.parametrize(
    ("window", "reason"), [(512, "length"), (511, "stop"), (513, "stop"), (None, "stop")]
)
def test_a_window_that_ended_the_output_is_told_by_the_counts(window: int | None, reason: Any) -> None:
    """Measured with llama.cpp: prompt and completion add up to the window exactly."""
    usage = {"prompt_tokens": 451, "completion_tokens": 61}
    events = decode(chunk({}, "stop", usage=usage), window_tokens=window)
    assert events == [Finished(reason, BackendUsage(451, 61))]


def test_only_as_many_alternatives_as_were_asked_for_are_told() -> None:
    """llama.cpp tells log probabilities only with at least one alternative."""
    events = play("openai/logprobs.sse", top_logprobs=0)
    assert events[0] == TextDelta(
        "Yes", [{"token": "Yes", "bytes": [89, 101, 115], "logprob": -0.1, "top_logprobs": []}]
    )


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ({"message": "Slow down.", "code": 429}, BackendRateLimitError),
        ({"message": "bad key sk-1", "code": "401"}, BackendAuthError),
        ({"message": "x", "code": "context_length_exceeded"}, ContextOverflowError),
        ({"message": "x", "code": 10**30}, BackendError),
        ("just text", BackendError),
        ({}, BackendError),
        (["x"], BackendError),
        (7, BackendError),
    ],
)
def test_an_error_in_mid_stream_is_one_failure_whatever_its_shape(error: Any, failure: Any) -> None:
    """Public issues of several servers; a text about keys is never passed on."""
    (event,) = decode({"error": error})
    assert event.error is failure
    assert "sk-1" not in event.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"[" * 100_000,
        b'{"choices":' * 50_000,
        b"\xff\xfe",
        b'{"choices":[{"delta":{"content":7}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"\\ud8"}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"\xff"}}]}}]}',
        b'{"choices":[{"delta":{},"logprobs":{"content":[{"top_logprobs":{}}]}}]}',
        b'{"error":"\xff"}',
    ],
)
def test_what_cannot_be_read_is_one_failure(data: bytes) -> None:
    """Ours: the decoder raises for nothing."""
    events = decode(data)
    assert len(events) == 1
    assert isinstance(events[0], Failure)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_raise(data: bytes) -> None:
    """Ours: exactly one terminal event for any bytes, in both forms of a body."""
    for streamed in (True, False):
        reader = AnswerReader(ChatDecoder(think_tags=True, window_tokens=None), streamed=streamed)
        events = reader.feed(b"data: " + data + b"\n\n" if streamed else data) + reader.close()
        assert count_terminals(events) == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_an_endless_event_is_refused(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: memory is bounded, whatever a server sends."""
    monkeypatch.setattr(answer, "EVENT_BYTES", 1000)
    reader = AnswerReader(ChatDecoder(think_tags=True, window_tokens=None), streamed=streamed)
    events = [event for _ in range(20) for event in reader.feed(b"x" * 100)]
    assert show(events) == [
        Failure(BackendError, "The model server sent an event that is too large to be one.")
    ]
    assert reader.close() == []


def test_a_whole_answer_needs_no_finish_reason() -> None:
    """A server that ignores `stream` may leave it out; the document is whole by itself."""
    reader = AnswerReader(ChatDecoder(think_tags=True, window_tokens=None), streamed=False)
    body = b'{"choices":[{"message":{"role":"assistant","content":"Hi","tool_calls":null}}]}'
    assert reader.feed(body) + reader.close() == [TextDelta("Hi"), Finished("stop")]


def test_a_long_call_in_many_pieces_costs_linear_time() -> None:
    """Ours: 20,000 fragments of one call, each named again, are not joined again and again."""
    pieces = [chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "x"}}]})]
    events = decode(*(pieces * 20_000))
    assert events == [CallDelta(0, "a", "f", "x" * 20_000), Finished("stop")]


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": "5", "completion_tokens": 2.0}, BackendUsage(5, 2)),
        ({"prompt_tokens": -5, "completion_tokens": 2}, None),
        ({"prompt_tokens": 10**30, "completion_tokens": 2}, None),
        ({"prompt_tokens": 5, "completion_tokens": -1}, None),
        ({"prompt_tokens": [5]}, None),
        ("many", None),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}},
            BackendUsage(5, 2),
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": -9},
            },
            BackendUsage(5, 2),
        ),
    ],
)
def test_counts_that_cannot_be_are_not_told_and_cost_no_answer(usage: Any, told: BackendUsage | None) -> None:
    """Ours: nothing that a server says of its counts may lose its answer, or be passed on as a count."""
    decoder = ChatDecoder(think_tags=True, window_tokens=None)
    text = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}], "usage": usage}
    events = decoder.feed(msgspec.json.encode(text)) + decoder.close()
    assert events == [TextDelta("ok"), Finished("stop", told)]


def test_a_second_choice_is_not_mixed_into_the_answer() -> None:
    """Ours: one answer was asked for."""
    decoder = ChatDecoder(think_tags=True, window_tokens=None)
    chunk = {"choices": [{"index": at, "delta": {"content": text}} for at, text in ((0, "A"), (1, "B"))]}
    assert decoder.feed(msgspec.json.encode(chunk)) == [TextDelta("A")]


def test_a_name_in_pieces_is_one_name() -> None:
    """Ours: servers that send everything token by token send names so; one that was offered is told at once."""

    def feed(*fragments: dict[str, Any]) -> list[Any]:
        decoder = ChatDecoder(think_tags=False, window_tokens=None, names={"get_weather", "f"})
        told = [
            decoder.feed(msgspec.json.encode(chunk({"tool_calls": [{"index": 0, **each}]})))
            for each in fragments
        ]
        return [*told, decoder.feed(b"[DONE]")]

    pieces = feed(
        {"id": "c", "function": {"name": "get_"}},
        {"function": {"name": "weather"}},
        {"function": {"arguments": "{}"}},
    )
    assert pieces[:3] == [
        [CallDelta(0, "c", "", "")],
        [CallDelta(0, "c", "get_weather", "")],
        [CallDelta(0, "c", "get_weather", "{}")],
    ]
    assert feed({"id": "c", "function": {"name": "f"}})[0] == [CallDelta(0, "c", "f", "")]
    # A name that nobody knows is whole when the arguments begin, or the answer ends.
    assert feed({"id": "c", "function": {"name": "no"}})[1][0] == CallDelta(0, "c", "no", "")


def test_a_call_in_the_form_before_tools_is_a_call() -> None:
    """OpenAI, Chat Completions: `function_call`, which `tool_calls` replaced."""
    events = decode(
        chunk({"function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"a":'}}),
        chunk({"function_call": {"arguments": "1}"}}, "function_call"),
    )
    assert events == [CallDelta(0, "", "f", '{"a":1}'), Finished("stop", None)]


def test_a_character_in_two_chunks_is_one_character() -> None:
    """RFC 8259 section 7: text, reasoning and arguments, as servers that send tokens one by one escape them."""
    template = {
        "content": '{"content":"%"}',
        "reasoning": '{"reasoning_content":"%"}',
        "call": '{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"%"}}]}',
    }
    for form in template.values():
        reader = AnswerReader(ChatDecoder(think_tags=False, window_tokens=None), streamed=True)
        events: list[BackendEvent] = []
        for text in (r"a\ud83d", r"\ude00b", r"\ud83d"):
            delta = form.replace("%", text)
            events += reader.feed(f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode())
        events += reader.feed(b"data: [DONE]\n\n") + reader.close()
        texts = [str(getattr(event, "text", getattr(event, "arguments", ""))) for event in events]
        assert "".join(texts) == "a😀b\ufffd"
        assert events[-1] == Finished("stop", None)
