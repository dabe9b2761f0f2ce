"""The contract of fetching images: one suite for the fake and for HTTP, and what HTTP alone must not do.

Names are resolved by a table, so that a name can stand for any address, and change its mind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import pytest
from aiohttp import web

from antiphon.hosted import Fetched, Fetcher, FetchError, HostedToolError
from antiphon.hosted.addresses import AddressError, AddressRules, Lookup, resolve
from antiphon.hosted.fetching import HttpFetcher, sniff
from antiphon.hosted.scripted import ScriptedFetcher

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
JPEG = b"\xff\xd8\xff\xe0" + bytes(100)
GIF = b"GIF89a" + bytes(100)
WEBP = b"RIFF\x00\x00\x00\x00WEBP" + bytes(100)
MAX_BYTES = 10_000
HOST = "pictures.test"
Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Play: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[Fetcher, str]]]


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[int]:
    """An HTTP server on loopback that answers every request so; gives its port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def name(table: Mapping[str, Sequence[str]]) -> Lookup:
    """A resolver that knows these names."""

    async def lookup(host: str, _port: int) -> Sequence[str]:
        if host not in table:
            raise OSError("no such name")
        return table[host]

    return lookup


def make_fetcher(
    *, rules: AddressRules | None = None, lookup: Lookup | None = None, timeout_s: float = 10.0
) -> HttpFetcher:
    return HttpFetcher(
        rules=rules or AddressRules(hosts=(HOST,)),
        max_bytes=MAX_BYTES,
        timeout_s=timeout_s,
        max_redirects=2,
        lookup=lookup or name({HOST: ["127.0.0.1"]}),
    )


async def answer_files(request: web.Request) -> web.Response:
    """The files of the contract."""
    files = {"/a.png": ("image/png", PNG), "/a.jpg": ("image/jpg", JPEG)}
    if request.path not in files:
        return web.Response(status=404)
    media_type, body = files[request.path]
    return web.Response(body=body, content_type=media_type)


@asynccontextmanager
async def play_fake() -> AsyncIterator[tuple[Fetcher, str]]:
    base = f"http://{HOST}"
    yield (
        ScriptedFetcher(
            {f"{base}/a.png": Fetched("image/png", PNG), f"{base}/a.jpg": Fetched("image/jpeg", JPEG)}
        ),
        base,
    )


@asynccontextmanager
async def play_http() -> AsyncIterator[tuple[Fetcher, str]]:
    async with serve(answer_files) as port:
        fetcher = make_fetcher()
        try:
            yield fetcher, f"http://{HOST}:{port}"
        finally:
            await fetcher.close()


PLAYERS = pytest.mark.parametrize("play", [play_fake, play_http])


def fetch_from(play: Play, path: str) -> Fetched:
    async def run() -> Fetched:
        async with play() as (fetcher, base):
            return await fetcher.fetch(path if ":" in path else base + path)

    return asyncio.run(run())


@PLAYERS
def test_an_image_comes_with_its_media_type(play: Play) -> None:
    """Ours: the seam of fetching."""
    assert fetch_from(play, "/a.png") == Fetched("image/png", PNG)
    assert fetch_from(play, "/a.jpg") == Fetched("image/jpeg", JPEG)


@PLAYERS
@pytest.mark.parametrize(
    ("path", "code"), [("/none.png", "failed_to_download_image"), ("ftp://a.no/a.png", "invalid_image_url")]
)
def test_an_image_that_cannot_be_had_is_told_by_a_code(play: Play, path: str, code: str) -> None:
    """Responses API, error codes of a response."""
    with pytest.raises(FetchError) as caught:
        fetch_from(play, path)
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert isinstance(caught.value, HostedToolError)


# HTTP alone.


def fetch(
    answer: Answer, *, path: str = "/x", fetcher: HttpFetcher | None = None, host: str = HOST
) -> Fetched:
    async def run() -> Fetched:
        async with serve(answer) as port:
            used = fetcher or make_fetcher()
            try:
                return await used.fetch(f"http://{host}:{port}{path}")
            finally:
                await used.close()

    return asyncio.run(run())


def answer_with(body: bytes, media_type: str | None, headers: Mapping[str, str] | None = None) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        sent = dict(headers or {})
        if media_type:
            sent["content-type"] = media_type
        return web.Response(body=body, headers=sent)

    return answer


@pytest.mark.parametrize(
    ("body", "media_type", "told"),
    [
        (PNG, "image/png", "image/png"),
        (JPEG, "image/jpeg; q=1", "image/jpeg"),
        (GIF, "image/gif", "image/gif"),
        (WEBP, "IMAGE/WEBP", "image/webp"),
        (JPEG, "image/jpg", "image/jpeg"),
    ],
)
def test_the_four_kinds_of_images_are_taken(body: bytes, media_type: str, told: str) -> None:
    """Responses API, images: png, jpeg, gif and webp."""
    assert fetch(answer_with(body, media_type)) == Fetched(told, body)
    assert sniff(body) == told


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (answer_with(b"<html>", "text/html"), "unsupported_image_media_type"),
        (answer_with(PNG, "application/octet-stream"), "unsupported_image_media_type"),
        (answer_with(b"<svg/>", "image/svg+xml"), "unsupported_image_media_type"),
        (answer_with(b"<html>", "image/png"), "invalid_image_format"),
        (answer_with(JPEG, "image/png"), "invalid_image_format"),
        (answer_with(b"", "image/png"), "empty_image_file"),
        (answer_with(PNG + bytes(MAX_BYTES), "image/png"), "image_file_too_large"),
        (answer_with(PNG, "image/png", {"content-encoding": "gzip"}), "failed_to_download_image"),
    ],
)
def test_what_is_no_such_image_is_refused_by_a_code(answer: Answer, code: str) -> None:
    """Responses API, error codes of a response."""
    with pytest.raises(FetchError) as caught:
        fetch(answer)
    assert caught.value.code == code


def test_a_body_without_a_length_is_stopped_at_the_limit() -> None:
    """Ours: a server may lie about sizes, or not tell them."""
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "image/png"})
        await response.prepare(request)
        while sent < 100 * MAX_BYTES:
            await response.write(PNG)
            sent += len(PNG)
        return response

    with pytest.raises(FetchError) as caught:
        fetch(answer)
    assert caught.value.code == "image_file_too_large"


def test_a_server_that_hangs_is_given_up() -> None:
    """Ours: every wait is bounded."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(FetchError, match=r"did not arrive within 0.2 s") as caught:
        fetch(answer, fetcher=make_fetcher(timeout_s=0.2))
    assert caught.value.code == "failed_to_download_image"


def test_the_host_of_the_url_is_told_to_the_server_that_was_resolved() -> None:
    """RFC 9110, 7.2: Host names the URL's authority, although the connection goes to the checked address."""
    hosts: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        hosts.append(request.headers.get("host", "").partition(":")[0])
        assert "authorization" not in request.headers
        return web.Response(body=PNG, content_type="image/png")

    fetch(answer)
    assert hosts == [HOST]


def test_a_redirect_is_followed_where_its_address_is_allowed() -> None:
    """Ours: image hosts redirect."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/x":
            raise web.HTTPFound("/y")
        return web.Response(body=PNG, content_type="image/png")

    assert fetch(answer) == Fetched("image/png", PNG)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("http://127.0.0.1/x", "invalid_image_url"),
        ("http://169.254.169.254/latest/meta-data/", "invalid_image_url"),
        ("file:///etc/passwd", "invalid_image_url"),
        ("//other.test/x", "invalid_image_url"),
        ("/x", "failed_to_download_image"),
    ],
)
def test_a_redirect_to_where_one_may_not_go_is_not_followed(target: str, code: str) -> None:
    """CWE-918: every address is checked, after redirects too; and they end."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound(target)

    with pytest.raises(FetchError) as caught:
        fetch(answer)
    assert (caught.value.code, len(asked)) == (code, 3 if target == "/x" else 1)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "0.0.0.0", "2130706433", "127.1", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_loopback_is_not_called_however_it_is_spelled(host: str) -> None:
    """CWE-918: the spellings that system resolvers take for 127.0.0.1."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=PNG, content_type="image/png")

    fetcher = HttpFetcher(rules=AddressRules(), max_bytes=MAX_BYTES, timeout_s=10, max_redirects=2)
    with pytest.raises(FetchError) as caught:
        fetch(answer, fetcher=fetcher, host=host)
    assert (caught.value.code, asked) == ("invalid_image_url", [])


def test_a_name_that_changes_its_address_is_connected_to_the_checked_one() -> None:
    """DNS rebinding: a second look-up would give another answer, so there is none."""
    asked: list[str] = []

    async def lookup(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    assert fetch(answer_with(PNG, "image/png"), fetcher=make_fetcher(lookup=lookup)) == Fetched(
        "image/png", PNG
    )
    assert asked == [HOST]


@pytest.mark.parametrize(
    "url", ["http://a:b@pictures.test/x", "http:///x", "http://pictures.test:x/", "x" * 9_000]
)
def test_a_url_that_is_none_or_brings_a_password_is_refused(url: str) -> None:
    """Ours: what would be sent beside the URL is not the server's to send."""
    with pytest.raises(FetchError) as caught:
        asyncio.run(make_fetcher().fetch(url))
    assert caught.value.code == "invalid_image_url"


# Addresses.


def resolve_now(
    host: str, rules: AddressRules, table: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    return asyncio.run(resolve(host, 443, rules, name(table or {})))


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "100.64.0.1", "198.18.0.1", "::1", "fc00::1"),
        *("::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:0:4136:e378:8000:63bf:f5ff:fffe"),
    ],
)
def test_private_addresses_are_called_only_where_that_is_allowed(address: str) -> None:
    """IANA special-purpose registries; IPv4 addresses inside IPv6 ones are looked at too."""
    with pytest.raises(AddressError, match="private"):
        resolve_now("a.test", AddressRules(), {"a.test": [address]})
    assert resolve_now("a.test", AddressRules(private=True), {"a.test": [address]}) == [address]
    assert resolve_now("a.test", AddressRules(hosts=("a.test",)), {"a.test": [address]}) == [address]


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "224.0.0.1", "0.0.0.0", "fe80::1", "ff02::1", "::"),
        *("::127.0.0.1", "::8.8.8.8", "64:ff9b:1::7f00:1", "::ffff:0:127.0.0.1"),
        *("fd00:ec2::254", "::ffff:169.254.169.254", "100.100.100.200", "fe80::1%eth0"),
    ],
)
def test_link_local_and_multicast_addresses_are_never_called(address: str) -> None:
    """Ours: credentials of cloud machines are served there."""
    rules = AddressRules(private=True, hosts=("a.test",))
    with pytest.raises(AddressError, match="never called"):
        resolve_now("a.test", rules, {"a.test": [address]})


def test_a_refusal_names_the_setting_that_would_allow_it() -> None:
    """Ours: whoever runs the server can change it."""
    rules = AddressRules(hosts_setting="mcp.hosts", private_setting="mcp.private_addresses or mcp.hosts")
    with pytest.raises(AddressError, match=r"mcp\.private_addresses or mcp\.hosts"):
        resolve_now("a.test", rules, {"a.test": ["10.0.0.1"]})
    rules = AddressRules(hosts=("b.test",), hosts_setting="mcp.hosts")
    with pytest.raises(AddressError, match=r"setting mcp\.hosts"):
        resolve_now("a.test", rules, {"a.test": ["93.184.215.14"]})


def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    """Ours: which of them would be connected to is the network's choice."""
    table = {"a.test": ["93.184.215.14", "10.0.0.1"]}
    with pytest.raises(AddressError, match="private"):
        resolve_now("a.test", AddressRules(), table)
    assert resolve_now("A.TEST.", AddressRules(), {"a.test": ["93.184.215.14"]}) == ["93.184.215.14"]


def test_a_list_of_hosts_is_a_limit() -> None:
    """Ours: `hosts` names all that may be called."""
    table = {"a.test": ["93.184.215.14"], "b.test": ["93.184.215.14"]}
    rules = AddressRules(hosts=("a.test:443", "c.test:80"))
    assert resolve_now("a.test", rules, table) == ["93.184.215.14"]
    for host in ("b.test", "c.test", "93.184.215.14"):
        with pytest.raises(AddressError, match="not among"):
            resolve_now(host, rules, table)


@pytest.mark.parametrize("host", ["unknown.test", "empty.test", "odd.test", ""])
def test_a_name_without_an_address_is_told(host: str) -> None:
    """Ours: a failure says which of the parts failed."""
    with pytest.raises(AddressError):
        resolve_now(host, AddressRules(), {"empty.test": [], "odd.test": ["not an address"]})
