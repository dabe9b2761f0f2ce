"""A Chat Completions request is handed on: byte-true but for the model's name, there and back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import Backend, Relayed
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.relaying import KeyMask
from antiphon.backends.responses import ResponsesBackend
from antiphon.backends.scripted import ScriptedBackend
from antiphon.engine.catalog import Alias, Catalog
from antiphon.engine.relay import open_relay, replace_model
from antiphon.protocol.errors import BackendAuthError, BackendError, RequestError
from tests.fake_upstream import MODEL, FakeUpstream, Reply, Request, frame, make_body, make_head, make_json

TIMEOUT_S = 20.0
KEY = "sk-secret-key"
DIALECTS = [ChatCompletionsBackend, ResponsesBackend]


def relay(
    answer: Callable[[Request], Reply],
    body: bytes,
    use: Callable[[Relayed, FakeUpstream], Awaitable[Any]],
    *,
    dialect: Any = ChatCompletionsBackend,
) -> Any:
    """What `use` makes of the answer to a body that names an alias or the model itself."""

    async def run() -> Any:
        async with FakeUpstream(answer) as upstream:
            backend: Backend = dialect(Endpoint(name="fake", url=upstream.url, key=KEY))
            catalog = Catalog({"fake": backend}, {"mine": Alias(endpoint="fake", model=MODEL)})
            try:
                return await use(await open_relay(catalog, body), upstream)
            finally:
                await catalog.close()

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


async def read(relayed: Relayed, upstream: FakeUpstream) -> tuple[int, dict[str, str], list[bytes], bytes]:
    """Status, headers, the pieces, and what the server was asked."""
    pieces = [piece async for piece in relayed.chunks]
    return relayed.status, relayed.headers, pieces, upstream.asked[-1].body


@pytest.mark.parametrize("dialect", DIALECTS)
def test_request_and_answer_pass_byte_true(dialect: Any) -> None:
    """Decided: passes through unchanged; only the model's name is the server's."""
    body = b'{ "x" : [1.0, {"model":"mine"}],\n"model" :"mine" , "stream":true, "y": "\\u00e9"}  '
    stream = [b'data: {"a": 1.50}\n\n', b"data: [DO", b"NE]\n\n"]

    def answer(request: Request) -> Reply:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return Reply([make_head(extra="x-request-id: r1\r\n"), *map(frame, stream), b"0\r\n\r\n"])

    status, headers, pieces, sent = relay(answer, body, read, dialect=dialect)
    assert sent == body.replace(b':"mine" ,', b':"fake-model" ,')
    assert status == 200
    assert headers == {"content-type": "text/event-stream", "x-request-id": "r1"}
    assert b"".join(pieces) == b"".join(stream)


def test_a_body_that_names_the_servers_own_model_is_not_touched() -> None:
    """Ours: equal names, equal bytes."""
    body = b'{"model":"fake\\u002dmodel"}'
    sent = relay(lambda request: Reply([make_json({})]), body, read)[3]
    assert sent == body


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_is_given_back_as_it_came_without_our_key(status: int) -> None:
    """Contract of `relay`: status and body are the server's; our key is masked wherever it stands."""
    told = f'{{"error": {{"message": "No, {KEY}!"}}}}'.encode()

    def answer(request: Request) -> Reply:
        extra = f"retry-after: 7\r\nx-told: {KEY}\r\nset-cookie: a=b\r\nconnection: x-hop\r\nx-hop: 1\r\n"
        return Reply([make_body(told, status=status, content_type="application/json", extra=extra)])

    got, headers, pieces, _ = relay(answer, b'{"model":"mine"}', read)
    assert got == status
    assert headers == {"content-type": "application/json", "retry-after": "7", "x-told": "***"}
    assert b"".join(pieces) == told.replace(KEY.encode(), b"***")


@pytest.mark.parametrize(
    ("status", "kind"), [(401, BackendAuthError), (403, BackendAuthError), (302, BackendError)]
)
def test_what_is_between_the_server_and_us_is_an_error_of_ours(status: int, kind: type[Exception]) -> None:
    """Decided: a refusal of our own key is a 500 with a line in the log."""
    with pytest.raises(kind) as raised:
        relay(lambda request: Reply([make_json({"error": KEY}, status=status)]), b'{"model":"mine"}', read)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize("reads", [0, 1])
def test_closing_cancels_upstream(reads: int) -> None:
    """Contract of `Relayed`: also where nobody has begun to read."""

    async def leave(relayed: Relayed, upstream: FakeUpstream) -> None:
        for _ in range(reads):
            await anext(relayed.chunks)
        await relayed.chunks.aclose()
        await asyncio.wait_for(upstream.asked[-1].left.wait(), TIMEOUT_S)

    relay(lambda request: Reply([make_head(), frame(b"data: 1\n\n")], end="hold"), b'{"model":"mine"}', leave)


def test_a_break_inside_the_body_is_raised() -> None:
    """Contract of `relay`: the reader learns that the answer is not whole."""
    with pytest.raises(BackendError, match="broke the connection"):
        relay(
            lambda request: Reply([make_head(), frame(b"data: 1\n\n")], end="reset"),
            b'{"model":"mine"}',
            read,
        )


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, None, None),
        (b"[]", 400, None, None),
        (b'{"messages":[]}', 400, "missing_required_parameter", "model"),
        (b'{"model":null}', 400, "missing_required_parameter", "model"),
        (b'{"model":7}', 400, "invalid_type", "model"),
        (b'{"model":[[1]]}', 400, "invalid_type", "model"),
        (b'{"model":"unknown"}', 404, "model_not_found", "model"),
    ],
)
def test_a_body_without_a_model_of_ours_is_refused(
    body: bytes, status: int, code: str | None, param: str | None
) -> None:
    """Responses-API section 6: the shape of errors; a model that is unknown is a 404 on this surface."""
    with pytest.raises(RequestError) as raised:
        relay(lambda request: Reply([make_json({})]), body, read)
    assert (raised.value.status, raised.value.code, raised.value.param) == (status, code, param)


def test_a_script_has_no_other_api() -> None:
    """Contract of `relay`: a backend without such an API says so."""
    with pytest.raises(RequestError, match="/v1/responses"):
        asyncio.run(ScriptedBackend().relay("/chat/completions", b"{}"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("model"), inner),
    max_leaves=20,
)


@given(before=st.dictionaries(st.text(), JSON), after=st.dictionaries(st.text(), JSON), indent=st.booleans())
def test_only_the_name_changes(before: dict[str, Any], after: dict[str, Any], indent: bool) -> None:
    """Ours: whatever stands around it, braces and quotes in texts included."""
    fields = {**before, "model": "a", **after}
    fields["model"] = "a"
    body = msgspec.json.encode(fields)
    body = msgspec.json.format(body, indent=2) if indent else body
    replaced = replace_model(body, "b\"'}{")
    assert msgspec.json.decode(replaced) == {**msgspec.json.decode(body), "model": "b\"'}{"}
    assert replace_model(replaced, "a") == body


@given(
    text=st.text(alphabet="abk", max_size=60),
    key=st.text(alphabet="abk", min_size=1, max_size=4),
    cuts=st.data(),
)
def test_a_key_is_masked_wherever_the_body_is_cut(text: str, key: str, cuts: st.DataObject) -> None:
    """Ours: pieces make the same text as the whole."""
    data = text.encode()
    mask = KeyMask(key)
    shown = b""
    while data:
        size = cuts.draw(st.integers(1, len(data)))
        shown += mask.feed(data[:size])
        data = data[size:]
    shown += mask.close()
    assert shown == text.replace(key, "***").encode()


@given(
    key=st.text(alphabet="ab/é", min_size=1, max_size=5),
    before=st.text(alphabet="xu0", max_size=5),
    written=st.data(),
)
def test_a_key_is_masked_however_json_escapes_it(key: str, before: str, written: st.DataObject) -> None:
    """RFC 8259, section 7: any character may be escaped."""
    body = f'{{"k":"{before}'
    for character in key:
        ways = [character, f"\\u{ord(character):04x}", f"\\u{ord(character):04X}"]
        body += written.draw(st.sampled_from([*ways, "\\/"] if character == "/" else ways))
    data = (body + 'y"}').encode()
    mask = KeyMask(key)
    shown = b""
    while data:
        size = written.draw(st.integers(1, len(data)))
        shown += mask.feed(data[:size])
        data = data[size:]
    shown += mask.close()
    assert shown == f'{{"k":"{before}***y"}}'.encode()
