"""The raw text of a custom tool comes out of a chat model's JSON as the model meant it, however it is split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.custom_input import HEAD_CHARACTERS, InputDecoder, decode_input

#: Text that UTF-8 can hold.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def decode(arguments: str, cuts: list[int], *, cut: bool = False) -> tuple[str, str]:
    """The text and the problem, with the arguments split at the given places."""
    decoder = InputDecoder()
    places = sorted({min(place, len(arguments)) for place in cuts})
    pieces = [
        arguments[start:end] for start, end in zip([0, *places], [*places, len(arguments)], strict=True)
    ]
    told = [decoder.feed(piece) for piece in pieces]
    told.append(decoder.end(cut=cut))
    return "".join(told), decoder.problem


CUTS = st.lists(st.integers(0, 200), max_size=30)


@given(TEXTS, CUTS, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_any_text_in_any_pieces_comes_back_exactly(
    text: str, cuts: list[int], ascii_only: bool, indent: int | str | None
) -> None:
    """Reversible: escapes and surrogate pairs may be split anywhere."""
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)
    assert decode(arguments, cuts) == (text, "")


@given(TEXTS, CUTS)
def test_what_is_no_such_object_is_the_text_itself(text: str, cuts: list[int]) -> None:
    """Ours: models that write the raw text as arguments are understood."""
    told = "*** Begin Patch\n" + text
    assert decode(told, cuts) == (told, "")


@given(TEXTS, CUTS)
def test_pieces_never_change_the_meaning(arguments: str, cuts: list[int]) -> None:
    """Ours: whatever the arguments are, splitting them says the same."""
    assert decode(arguments, cuts) == decode(arguments, [])
    broken = '{"input": "' + arguments
    assert decode(broken, cuts) == decode(broken, [])


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{}",
        '{"in',
        '{"input"',
        '{"input": 5}',
        '{"input": {"a": 1}}',
        '{"code": "x", "input": "y"}',
        "[]",
        "5",
    ],
)
def test_other_json_is_taken_as_it_is(raw: str) -> None:
    """Ours: nothing of it is lost."""
    assert decode_input(raw) == raw


@pytest.mark.parametrize(
    ("arguments", "text", "problem"),
    [
        ('{"input": "a', "a", "end"),
        ('{"input": "a\\', "a\\", "end"),
        ('{"input": "a\\ud83d', "a\ufffd", "end"),
        ('{"input": "a"', "a", "after"),
        ('{"input": "a", "x": 1}', "a", "after"),
        ('{"input": "a\nb"}', "a\nb", ""),
        ('{"input": "\\d+"}', "\\d+", "escape"),
        ('{"input": "\\u12g4"}', "\\u12g4", "escape"),
        ('{"input": "\\ud800x"}', "\ufffdx", "surrogate"),
        ('{"input": "\\ude00"}', "\ufffd", "surrogate"),
        ('{"input": "\\ud83d\\ud83d\\ude00"}', "\ufffd😀", "surrogate"),
        ('{"input": "\\uD83D\\uDE00\\u0041\\/"}', "😀A/", ""),
    ],
)
def test_json_that_is_not_quite_right_is_read_and_told(arguments: str, text: str, problem: str) -> None:
    """Ours: models forget escapes and ends; what could be read is handed out, and the response says so."""
    for step in (1, 3, 100):
        told = decode(arguments, list(range(0, len(arguments), step)))
        assert told[0] == text
        assert problem in told[1]
        assert bool(told[1]) == bool(problem)


def test_an_input_that_was_cut_off_keeps_what_had_come() -> None:
    """Responses API 4.5: the last item is incomplete."""
    assert decode('{"input": "abc\\u00', [], cut=True) == ("abc", "")
    assert decode('{"inp', [], cut=True) == ("", "")
    assert decode("*** Beg", [], cut=True) == ("*** Beg", "")


@given(st.integers(0, 2 * HEAD_CHARACTERS), CUTS)
def test_a_head_beyond_its_limit_is_raw_text_however_it_is_split(blanks: int, cuts: list[int]) -> None:
    """Ours: endless blanks are looked through once, and where they are cut changes nothing."""
    arguments = " " * blanks + '{"input":"a"}'
    is_head = blanks + len('{"input":"') <= HEAD_CHARACTERS
    told = "a" if is_head else arguments
    assert decode(arguments, cuts)[0] == told
    assert decode(arguments, list(range(len(arguments))))[0] == told


@pytest.mark.parametrize(
    ("tail", "problem"), [("} \n ", ""), (" }x", "after the text came: }x"), ("  ", "after")]
)
def test_what_follows_the_text_is_told_in_any_pieces(tail: str, problem: str) -> None:
    """Ours: a wrong tail is told, and costs no more than what is told of it."""
    arguments = '{"input":"a"' + tail
    text, told = decode(arguments, list(range(len(arguments))))
    assert (text, told.startswith(problem), bool(told)) == ("a", True, bool(problem))
