"""Answers in the form of the schema, at every cut: text, calls, what is cut off, and what has another form."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import BackendEvent, CallDelta, Finished, ReasoningDelta, TextDelta
from antiphon.backends.answer import AnswerReader
from antiphon.backends.chat_completions.decode import ChatDecoder
from antiphon.backends.chat_completions.parameters import LIST_ITEMS, STRING_CHARACTERS
from antiphon.backends.chat_completions.schema_answers import SchemaReader, read_escape
from tests.wire import merge

NAMES = ("get_weather", "get_time")
PARIS = ("get_weather", '{"city":"Paris"}')


def read(pieces: Iterable[str], *, json_reply: bool = False) -> tuple[list[Any], bool]:
    """Texts and calls of an answer in order, neighbours joined, and whether it was cut off."""
    reader = SchemaReader(NAMES, json_reply=json_reply)
    events: list[BackendEvent] = []
    for piece in pieces:
        events += reader.read([TextDelta(piece)])
    events += reader.close()
    return shape(events), reader.cut


def shape(events: list[BackendEvent]) -> list[Any]:
    """A text as a string, a call as a pair; blank text is left out, as the assembler leaves it out."""
    shaped: list[Any] = []
    for event in merge(events):
        if isinstance(event, CallDelta):
            assert event.id == ""
            shaped.append((event.name, event.arguments))
        elif isinstance(event, TextDelta) and event.text.strip():
            shaped.append(event.text)
    return shaped


def check_everywhere(text: str, expected: list[Any], *, cut: bool = False, json_reply: bool = False) -> None:
    """The same, whole, letter by letter, and cut in two at every place."""
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        assert read(pieces, json_reply=json_reply) == (expected, cut), pieces


CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"reply": "Hello."}', ["Hello."]),
        ('{\n\n"reply"\n\n:\n\n"Hello."\n\n}\n', ["Hello."]),
        (r'{"reply":"a\"b\\c\/d\n\te\u00e9\ud83d\ude00f"}', ['a"b\\c/d\n\teé😀f']),
        (r'{"reply":"half \ud83d and \ude00, bad \u12x4 \q"}', ["half \ufffd and \ufffd, bad \\u12x4 \\q"]),
        (CALL, [PARIS]),
        ('{"name":"get_weather","arguments":\n{\n "city" :\n"Paris"\n}\n}', [PARIS]),
        ('{"arguments": {"city": "Paris"}, "name": "get_weather"}', [PARIS]),
        ('{"name":"get_weather","parameters":{"city":"Paris"}}', [PARIS]),
        (r'{"name":"get_weather","arguments":"{\"city\":\"Paris\"}"}', [PARIS]),
        ('{"name": "get_time", "arguments": {}}', [("get_time", "{}")]),
        ('{"name": "get_time", "arguments": null}', [("get_time", "{}")]),
        ('{"name": "get_time"}', [("get_time", "{}")]),
        ('{"id": "x", "name": "get_time", "arguments": {}, "why": [1, {"a": "}"}]}', [("get_time", "{}")]),
        (
            r'{"name":"get_time","arguments":{"a":"x } \" \\","b":[1, 2.5e-3, {"c": null}], "d": true}}',
            [("get_time", r'{"a":"x } \" \\","b":[1,2.5e-3,{"c":null}],"d":true}')],
        ),
        (f"[{CALL}, {CALL}]", [PARIS, PARIS]),
        (f"[{CALL}]", [PARIS]),
        (f'[{CALL},\n{{"name":"get_time","arguments":{{}}}} ]\n', [PARIS, ("get_time", "{}")]),
        (f"{CALL}\n{CALL}", [PARIS, PARIS]),
        (f'{{"reply": "One moment."}} {CALL}', ["One moment.", PARIS]),
    ],
)
def test_an_answer_in_the_form_is_read(text: str, expected: list[Any]) -> None:
    """Ours: what was asked for, and the ways in which servers without enforcement come near it."""
    check_everywhere(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"reply": {"a": [1, "x y"]}}', ['{"a":[1,"x y"]}']),
        ('{"reply": "a\\n"}', ['"a\\n"']),
        ('{"reply": 12 }', ["12"]),
        ('{"reply": true}', ["true"]),
        (CALL, [PARIS]),
    ],
)
def test_a_reply_of_the_clients_own_form_is_given_as_json(text: str, expected: list[Any]) -> None:
    """`text.format` json_schema beside tools: the client parses the text."""
    check_everywhere(text, expected, json_reply=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"reply": "Once upon', ["Once upon"]),
        (r'{"reply": "Once\u00', ["Once"]),
        (r'{"reply": "Once\ud83d', ["Once"]),
        ('{"reply": "Once."', ["Once."]),
        ('{"name": "get_weather", "arguments": {"city": "Pa', [("get_weather", '{"city":"Pa')]),
        ('{"name": "get_weather", "argu', [("get_weather", "")]),
        (f"[{CALL}, ", [PARIS]),
    ],
)
def test_an_answer_that_was_cut_off_says_so(text: str, expected: list[Any]) -> None:
    """Ours: what is there is delivered, and the response is incomplete whatever the server says."""
    check_everywhere(text, expected, cut=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there.", ["Hello there."]),
        ("The sum is {x}.\n{ not json\nend", ["The sum is {x}.\n{ not json\nend"]),
        ('{"temperature": 3}', ['{"temperature": 3}']),
        ('{"name": "delete_all", "arguments": {}}', ['{"name": "delete_all", "arguments": {}}']),
        ('{"name": 5}', ['{"name": 5}']),
        ('{"name": "get_we', ['{"name": "get_we']),
        ("[1, 2]", ["[1, 2]"]),
        ("[]", ["[]"]),
        ("{}", ["{}"]),
        ('{"arguments": {"city": "Paris"}}', ['{"arguments": {"city": "Paris"}}']),
        (f"{CALL} and so on", [PARIS, "and so on"]),
        ('{"reply": "a" b}', ["ab}"]),
        # Salvaged: the server did not enforce the schema.
        (f"```json\n{CALL}\n```", [PARIS]),
        (f"Let me look.\n```json\n{CALL}\n```\nDone.", ["Let me look.\n", PARIS, "\nDone."]),
        (f"```\n[{CALL},{CALL}]\n```", [PARIS, PARIS]),
        (f"<tool_call>\n{CALL}\n</tool_call>", [PARIS]),
        (f"I call it:\n{CALL}", ["I call it:\n", PARIS]),
        (f"```json\n{CALL}", [PARIS]),
        ('```json\n{"a": 1}\n```', ['```json\n{"a": 1}\n```']),
        ('```python\nprint({"name": 1})\n```', ['```python\nprint({"name": 1})\n```']),
    ],
)
def test_an_answer_in_another_form_is_text_but_for_its_calls(text: str, expected: list[Any]) -> None:
    """Ours: nothing is lost where a server ignores the schema, and a call is a call wherever it stands."""
    shaped = [part.lstrip() if part == " and so on" else part for part in expected]
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))):
        found, cut = read(pieces)
        assert not cut
        if shaped[-1] == "and so on":
            found[-1] = found[-1].lstrip()
        assert found == shaped, pieces


@pytest.mark.parametrize(
    ("arguments", "cut"),
    [
        ({"a": "x" * STRING_CHARACTERS}, True),
        ({"a": "x" * (STRING_CHARACTERS - 1)}, False),
        ({"a": [{"b": list(range(LIST_ITEMS))}]}, True),
        ({"a": [{"b": list(range(LIST_ITEMS - 1))}]}, False),
    ],
)
def test_an_argument_as_long_as_we_allow_counts_as_cut_off(arguments: Any, cut: bool) -> None:
    """Ours: half a file must not look like a whole one."""
    text = json.dumps({"name": "get_time", "arguments": arguments})
    assert read([text]) == ([("get_time", json.dumps(arguments, separators=(",", ":")))], cut)


@given(st.text(), st.data())
def test_a_reply_arrives_unchanged_whatever_its_cuts(text: str, data: st.DataObject) -> None:
    """Ours: every text that JSON can hold, escaped in full or as little as possible."""
    written = json.dumps({"reply": text}, ensure_ascii=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(written)), max_size=6)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    reader = SchemaReader(NAMES, json_reply=False)
    events = [event for piece in pieces for event in reader.read([TextDelta(piece)])] + reader.close()
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
    assert len(events) == sum(isinstance(event, TextDelta) for event in events)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.data())
def test_arguments_arrive_unchanged_whatever_their_cuts(arguments: Any, data: st.DataObject) -> None:
    """Ours: their JSON is the same but for blanks between its parts."""
    indent = data.draw(st.sampled_from([None, 1]))
    written = json.dumps({"name": "get_time", "arguments": arguments}, indent=indent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(written)), max_size=6)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert read(pieces) == ([("get_time", json.dumps(arguments, separators=(",", ":")))], False)


@given(st.text(alphabet="{}[]\":,\\u0 \nn1reply'`", max_size=40), st.data())
def test_no_answer_breaks_the_reader(text: str, data: st.DataObject) -> None:
    """Ours: garbage ends as text or nothing, and a cut changes nothing."""
    at = data.draw(st.integers(0, len(text)))
    assert read([text]) == read([text[:at], text[at:]]) == read(list(text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\", None),
        ("\\n", ("\n", 2)),
        (r"\u00e", None),
        (r"\u00e9", ("é", 6)),
        (r"\ud83d", None),
        (r"\ud83d\ud", None),
        (r"\ud83d\n", ("\ufffd", 6)),
        (r"\ud83dx", ("\ufffd", 6)),
        (r"\ud83d\ude00", ("😀", 12)),
        (r"\ude00", ("\ufffd", 6)),
    ],
)
def test_an_escape_waits_for_all_of_itself(text: str, found: tuple[str, int] | None) -> None:
    """RFC 8259 section 7."""
    assert read_escape(text, 0) == found


def play(*contents: str, finish: str = "stop", think_tags: bool = True) -> list[BackendEvent]:
    """A streamed answer through the whole decoder."""
    decoder = ChatDecoder(
        think_tags=think_tags, window_tokens=None, texts=SchemaReader(NAMES, json_reply=False)
    )
    reader = AnswerReader(decoder, streamed=True)
    events: list[BackendEvent] = []
    for content in contents:
        chunk = {"choices": [{"delta": {"content": content}}]}
        events += reader.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    end = {"choices": [{"delta": {}, "finish_reason": finish}]}
    return events + reader.feed(b"data: " + msgspec.json.encode(end) + b"\n\ndata: [DONE]\n\n")


def test_a_reply_streams_while_it_arrives() -> None:
    """Ours: the client need not wait for the end of the JSON."""
    assert play('{"reply": "Hel', "lo", '."}') == [
        TextDelta("Hel"),
        TextDelta("lo"),
        TextDelta("."),
        Finished("stop"),
    ]


def test_thoughts_before_the_json_stay_thoughts() -> None:
    """Ours: a model that thinks first answers in the form afterwards."""
    events = play("<think>\nHm.</think>\n\n", CALL)
    assert events[0] == ReasoningDelta("Hm.")
    assert shape(events) == [PARIS]
    assert events[-1] == Finished("stop")


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_half_an_answer_ends_as_one(finish: str) -> None:
    """Ours: a server that ends by itself inside the JSON has been cut off by something."""
    assert play('{"reply": "Once', finish=finish) == [TextDelta("Once"), Finished("length")]
