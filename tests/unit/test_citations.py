"""Which hits of a search an answer cites."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.citations import CitationFinder, find_citations
from antiphon.hosted import SearchHit

HITS = [
    SearchHit("https://a.no/deep", "Deep", ""),
    SearchHit("https://a.no/deep/er", "Deeper", ""),
    SearchHit("https://en.wikipedia.org/wiki/Oslo_(city)", "Oslo", ""),
    SearchHit("https://b.no/", "B", ""),
]


def cited(text: str) -> list[tuple[str, str]]:
    """What was found: the citing text, and the title."""
    return [
        (text[each["start_index"] : each["end_index"]], each["title"]) for each in find_citations(text, HITS)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("See [this page](https://a.no/deep).", [("[this page](https://a.no/deep)", "Deep")]),
        ("See ([a.no](https://a.no/deep)).", [("[a.no](https://a.no/deep)", "Deep")]),
        ('[x](https://a.no/deep "Deep")', [('[x](https://a.no/deep "Deep")', "Deep")]),
        ("See https://a.no/deep.", [("https://a.no/deep", "Deep")]),
        ("<https://a.no/deep>, **https://b.no**", [("https://a.no/deep", "Deep"), ("https://b.no", "B")]),
        ("(https://a.no/deep)", [("https://a.no/deep", "Deep")]),
        ("https://a.no/deep/er https://a.no/deeper", [("https://a.no/deep/er", "Deeper")]),
        ("HTTPS://A.NO/deep".replace("HTTPS", "https"), [("https://A.NO/deep", "Deep")]),
        ("https://a.no/deep#part", [("https://a.no/deep#part", "Deep")]),
        (
            "[Oslo](https://en.wikipedia.org/wiki/Oslo_(city)) and https://en.wikipedia.org/wiki/Oslo_(city)!",
            [
                ("[Oslo](https://en.wikipedia.org/wiki/Oslo_(city))", "Oslo"),
                ("https://en.wikipedia.org/wiki/Oslo_(city)", "Oslo"),
            ],
        ),
        ("See https://unknown.no/ and [x](https://other.no).", []),
        ("æøå 🏔 https://b.no", [("https://b.no", "B")]),
        ("", []),
    ],
)
def test_links_and_addresses_of_hits_are_found(text: str, found: list[tuple[str, str]]) -> None:
    """Responses API, url_citation: start and end in characters."""
    assert cited(text) == found


def test_an_annotation_has_the_shape_of_the_api() -> None:
    """Responses API, annotations of output_text."""
    assert find_citations("See https://b.no", HITS) == [
        {"type": "url_citation", "start_index": 4, "end_index": 16, "url": "https://b.no/", "title": "B"}
    ]


def test_without_hits_nothing_is_looked_for() -> None:
    """Ours: most responses search nothing."""
    finder = CitationFinder()
    assert not finder
    assert finder.find("https://b.no") == []
    finder.add(HITS)
    assert finder
    assert len(finder.find("https://b.no")) == 1


@given(
    st.lists(st.sampled_from(["[", "]", "(", ")", "https://a.no/deep", " ", '"', ".", "x", "](", "<", "\n"]))
)
def test_ranges_come_in_order_and_never_overlap(pieces: list[str]) -> None:
    """Ours: whatever a model writes."""
    text = "".join(pieces)
    end = 0
    for each in find_citations(text, HITS):
        assert end <= each["start_index"] < each["end_index"] <= len(text)
        assert "https://a.no/deep" in text[each["start_index"] : each["end_index"]]
        end = each["end_index"]


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "[a](https://" * 5_000, "https://" * 10_000, "(" * 50_000, "[a](https://a(" * 5_000],
)
def test_odd_texts_take_no_time(text: str) -> None:
    """CWE-1333: the patterns have nothing to try again."""
    assert find_citations(text, HITS) == []
