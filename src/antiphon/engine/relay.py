"""A request of another API handed on to the backend of its model, unchanged but for the model's name.

It looks for the name at the top of the body and at nothing else. Invariant: every byte outside the name is the
client's, and a name that the server knows by the same word is left alone.
"""

import re
from typing import Final

import msgspec

from antiphon.backends import Relayed
from antiphon.engine.catalog import Catalog
from antiphon.protocol.checks import decode_body, invalid_type, missing_parameter
from antiphon.protocol.errors import NotFoundError, RequestError

CHAT_PATH: Final = "/chat/completions"

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_NEXT_STRING = re.compile(_STRING, re.DOTALL)
#: Brackets, and strings whole, so that a bracket inside one does not count.
_NESTING = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*")
#: A number or a word.
_PLAIN = re.compile(rb"[^,}\]\s]+")


async def open_relay(catalog: Catalog, body: bytes) -> Relayed:
    """Hand a Chat Completions request on; the answer's bytes come as they arrive.

    Raises `RequestError` for a body without a model that we know (404 for an unknown one), and `BackendError` when
    the server cannot be reached or refuses our key.
    """
    name = _read_model(body)
    try:
        target = await catalog.find(name)
    except RequestError as error:
        if error.code != "model_not_found":
            raise
        raise NotFoundError(error.message, param=error.param, code=error.code) from error
    if target.model != name:
        body = replace_model(body, target.model)
    return await target.backend.relay(CHAT_PATH, body)


def _read_model(body: bytes) -> str:
    raw = bytes(decode_body(body).get("model", b"null"))
    if raw == b"null":
        raise missing_parameter("model")
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    # What is inside is of no interest, and may be a large tree.
    empty: dict[bytes, object] = {b"{": {}, b"[": []}
    first = raw[:1]
    raise invalid_type("model", "a string", empty[first] if first in empty else msgspec.json.decode(raw))


def replace_model(body: bytes, name: str) -> bytes:
    """The body with `name` as its model: `{"model": "a", "x": 1}`, `b` -> `{"model": "b", "x": 1}`.

    The body is a JSON object that was decoded before; a model that is told twice is replaced twice.
    """
    encoded = msgspec.json.encode(name)
    pieces: list[bytes] = []
    copied = 0
    for start, end in _find_models(body):
        pieces += [body[copied:start], encoded]
        copied = end
    return b"".join([*pieces, body[copied:]])


def _find_models(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the top-level key `model` stand."""
    found: list[tuple[int, int]] = []
    place = body.index(b"{") + 1
    while (key := _NEXT_STRING.match(body, _skip_blank(body, place))) is not None:
        start = _skip_blank(body, _skip_blank(body, key.end()) + 1)
        end = _skip_value(body, start)
        if msgspec.json.decode(key[0]) == "model":
            found.append((start, end))
        # Behind the comma, or behind the end.
        place = _skip_blank(body, end) + 1
    return found


def _skip_blank(body: bytes, place: int) -> int:
    blank = _BLANK.match(body, place)
    return blank.end() if blank is not None else place


def _skip_value(body: bytes, place: int) -> int:
    """The end of the value that begins here."""
    if body[place : place + 1] not in (b"{", b"["):
        plain = (_NEXT_STRING if body[place : place + 1] == b'"' else _PLAIN).match(body, place)
        return plain.end() if plain is not None else place
    depth = 0
    for token in _NESTING.finditer(body, place):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if not depth:
                return token.end()
    return len(body)
