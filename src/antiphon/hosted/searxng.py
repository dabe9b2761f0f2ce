"""Web search by a SearXNG server, through its JSON API: `GET /search?q=...&format=json`.

It knows nothing of items or models. Invariants: domain filters hold strictly, whatever the engines made of them;
every answer is limited in size and time; redirects are not followed.
"""

import asyncio
import re
from typing import Any, Final

import aiohttp
import msgspec

from antiphon.hosted.domains import clean_domain, keep_allowed
from antiphon.hosted.interface import HostedToolError, SearchHit, SearchQuery

#: An answer of this size holds hundreds of hits.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
#: Domain filters may leave little of a page, so that further ones are asked for.
MAX_PAGES: Final = 3
MAX_QUERY_CHARACTERS: Final = 2_000
MAX_TITLE_CHARACTERS: Final = 300
MAX_SNIPPET_CHARACTERS: Final = 1_000
_CONNECTIONS: Final = 32
#: Control characters, and those that turn the order of what is read.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class SearxngSearch:
    """The search of one SearXNG server. `key` is sent as a bearer token, for a server behind a gate."""

    name = "searxng"

    def __init__(self, url: str, *, timeout_s: float = 10.0, key: str | None = None) -> None:
        self._url = url.rstrip("/") + "/search"
        self._timeout_s = timeout_s
        self._headers = {"accept": "application/json", "accept-encoding": "identity"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"SearxngSearch(url={self._url!r})"

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """See `SearchProvider`."""
        found: list[SearchHit] = []
        try:
            async with asyncio.timeout(self._timeout_s):
                for page in range(1, MAX_PAGES + 1):
                    hits, complaints = _read_page(await self._ask(query, page))
                    found += hits
                    if not hits or len(keep_allowed(found, query)) >= query.count:
                        break
        except TimeoutError as error:
            raise HostedToolError(f"The web search did not answer within {self._timeout_s:g} s.") from error
        except aiohttp.ClientConnectorError as error:
            raise HostedToolError("The web search cannot be reached.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise HostedToolError("The web search broke the connection.") from error
        if not found and complaints:
            raise HostedToolError(f"The web search found nothing; engines failed: {complaints}.")
        return keep_allowed(found, query)

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, query: SearchQuery, page: int) -> dict[str, Any]:
        parameters = {"q": build_text(query), "format": "json", "pageno": str(page)}
        session = self._open_session()
        async with session.get(self._url, params=parameters, allow_redirects=False) as response:
            if response.status != 200:
                raise HostedToolError(_explain(response.status))
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise HostedToolError("The web search answered with more than 4 MiB.")
        try:
            return _decode(bytes(body))
        except (msgspec.DecodeError, RecursionError) as error:
            raise HostedToolError("The web search answered with something that is no JSON object.") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def build_text(query: SearchQuery) -> str:
    """The query with its domains as search engines write them: `fjords (site:a.no OR site:b.no) -site:c.no`."""
    words = [query.text[:MAX_QUERY_CHARACTERS]]
    sites = [f"site:{domain}" for domain in map(clean_domain, query.allowed_domains) if domain]
    if sites:
        words.append(sites[0] if len(sites) == 1 else f"({' OR '.join(sites)})")
    words += [f"-site:{domain}" for domain in map(clean_domain, query.blocked_domains) if domain]
    return " ".join(words)


def _read_page(answer: dict[str, Any]) -> tuple[list[SearchHit], str]:
    """The hits of a page, and the names of engines that failed."""
    results = answer.get("results")
    hits = [_read_hit(result) for result in (results if isinstance(results, list) else ())]
    told = answer.get("unresponsive_engines")
    silent = told if isinstance(told, list) else ()
    names = [str(entry[0])[:50] for entry in silent if isinstance(entry, list) and entry]
    return [hit for hit in hits if hit is not None], ", ".join(names[:10])


def _read_hit(result: Any) -> SearchHit | None:
    if not isinstance(result, dict) or not isinstance(result.get("url"), str):
        return None
    title, snippet = result.get("title"), result.get("content")
    return SearchHit(
        url=result["url"],
        title=_shorten(title, MAX_TITLE_CHARACTERS),
        snippet=_shorten(snippet, MAX_SNIPPET_CHARACTERS),
    )


def _shorten(text: Any, limit: int) -> str:
    # A control character in the middle of a text is worth a blank.
    words = " ".join(_CONTROLS.sub(" ", text).split()) if isinstance(text, str) else ""
    return words if len(words) <= limit else words[: limit - 1] + "…"


def _explain(status: int) -> str:
    if status == 403:
        return "The web search answered 403: SearXNG gives JSON only where settings.yml has json among search.formats."
    if status == 429:
        return "The web search answered 429: it asks to slow down."
    if 300 <= status < 400:
        return (
            f"The web search answered {status}, a redirect, and redirects are not followed: check search.url."
        )
    return f"The web search answered {status}."
