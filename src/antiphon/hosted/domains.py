"""Which hits may be told, by their address and by domains: `example.com` means it and its subdomains,
`example.com/docs` that part of it.

It knows no search. Invariant: a URL that cannot be read, or that could be taken for other text, is of no domain.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

from antiphon.hosted.interface import SearchHit, SearchQuery

#: Longer addresses are of use to nobody, and the model is told every one of them.
MAX_URL_CHARACTERS: Final = 2_048
#: Whitespace and control characters, of Unicode too: an address with one may end where its reader does not see it.
_ODD: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def keep_allowed(hits: Iterable[SearchHit], query: SearchQuery) -> list[SearchHit]:
    """The hits that the query's domains allow, each URL once, at most `query.count`."""
    kept: dict[str, SearchHit] = {}
    for hit in hits:
        if len(kept) == query.count:
            break
        if is_allowed(hit.url, query.allowed_domains, query.blocked_domains):
            kept.setdefault(hit.url, hit)
    return list(kept.values())


def is_allowed(url: str, allowed: Sequence[str], blocked: Sequence[str]) -> bool:
    """Whether a web page may be among the hits; blocking outranks allowing."""
    if len(url) > MAX_URL_CHARACTERS or _ODD.search(url):
        return False
    place = _split(url)
    if place is None or any(_is_within(place, domain) for domain in blocked):
        return False
    return not allowed or any(_is_within(place, domain) for domain in allowed)


def clean_domain(domain: str) -> str:
    """A domain as clients write it, as a search engine takes it: `https://Example.com/` -> `example.com`."""
    host, path = _split(domain if "://" in domain else f"https://{domain}") or ("", "")
    return host + path.rstrip("/")


def _is_within(place: tuple[str, str], domain: str) -> bool:
    wanted = _split(domain if "://" in domain else f"https://{domain}")
    if wanted is None:
        return False
    host, path = place
    inside = host == wanted[0] or host.endswith(f".{wanted[0]}")
    prefix = wanted[1].rstrip("/")
    return inside and (not prefix or path == prefix or path.startswith(f"{prefix}/"))


def _split(url: str) -> tuple[str, str] | None:
    """Host and path of a web address; None for anything else, and for one with a name or password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        return None
    return host.rstrip(".").lower(), parts.path
