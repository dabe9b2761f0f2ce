"""Which pages an answer cites: links and addresses in its text that were among the hits of a search.

Pure text work; it knows no stream. Invariant: an annotation's range is exactly the text that cites, in characters,
and ranges come in order and never overlap.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from antiphon.hosted import SearchHit

#: A URL as it stands in text; parentheses may be part of it where they come in pairs.
_URL: Final = r"https?://(?:[^\s()<>\[\]\"]|\([^\s()<>\"]*\))+"
#: `[words](url)`, `[words](url "title")`, or the bare URL.
_CITING: Final = re.compile(rf"\[[^\[\]\n]{{0,400}}\]\(({_URL})(?: +\"[^\"\n]{{0,400}}\")?\)|({_URL})")
#: What follows a URL in a sentence and is no part of it.
_TAIL: Final = ".,;:!?'*_`"


class CitationFinder:
    """The hits of a response so far, and what of a text cites them."""

    def __init__(self) -> None:
        self._titles: dict[str, tuple[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything that could be cited."""
        return bool(self._titles)

    def add(self, hits: Iterable[SearchHit]) -> None:
        """Hits that the model was shown; the first title of a page stays."""
        for hit in hits:
            self._titles.setdefault(_normalise(hit.url), (hit.url, hit.title))

    def find(self, text: str) -> list[dict[str, Any]]:
        """The `url_citation` annotations of a whole text, in order."""
        return _find(text, self._titles) if self._titles else []


def find_citations(text: str, hits: Iterable[SearchHit]) -> list[dict[str, Any]]:
    """The `url_citation` annotations of a text: `"See https://a.no/x."` -> one with range 4 to 18."""
    finder = CitationFinder()
    finder.add(hits)
    return finder.find(text)


def _find(text: str, titles: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    annotations = []
    for match in _CITING.finditer(text):
        start, end = match.span()
        url = match[1] or match[2]
        if match[2] is not None:
            url = url.rstrip(_TAIL)
            end = start + len(url)
        found = titles.get(_normalise(url))
        if found is not None:
            annotations.append(
                {
                    "type": "url_citation",
                    "start_index": start,
                    "end_index": end,
                    "url": found[0],
                    "title": found[1],
                }
            )
    return annotations


def _normalise(url: str) -> str:
    """What models change in an address without meaning another page: the fragment, the last slash, host case."""
    scheme, _, rest = url.partition("#")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}".rstrip("/")
