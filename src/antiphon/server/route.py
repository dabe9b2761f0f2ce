"""What a route is: a path, a method, what goes in and out, and the handler; the OpenAPI document reads it too.

It knows no engine. Invariant: what a route takes is what its specification says, so that nothing is
accepted and forgotten.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.requests import Request

from antiphon.engine import EventSource, Relayed
from antiphon.protocol.errors import RequestError
from antiphon.server.keys import Access

#: Where responses are created, over HTTP and over WebSocket.
RESPONSES_PATH = "/v1/responses"
#: Page sizes of list routes.
MAX_LIMIT = 100
DEFAULT_LIMIT = 20
#: No query parameter of the API is longer.
QUERY_CHARACTERS = 1024


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request on its way to a handler. `body` is empty where the route takes none."""

    request: Request
    access: Access
    body: bytes = b""

    @property
    def tenant(self) -> str:
        """Whose data it is about."""
        return self.access.tenant

    def get_path(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def get_query(self, name: str) -> str | None:
        """A query parameter, None when it was left out."""
        return self.request.query_params.get(name)

    def list_query(self, name: str) -> tuple[str, ...]:
        """A query parameter that may come several times, as `name` and as `name[]`."""
        values = self.request.query_params
        return (*values.getlist(name), *values.getlist(f"{name}[]"))


#: JSON; a response's events; another server's answer.
Answer: TypeAlias = bytes | EventSource | Relayed
Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


class Query(msgspec.Struct, frozen=True):
    """A query parameter, by its JSON schema."""

    name: str
    schema: dict[str, Any]
    #: Whether it may come several times, and as `name[]` too.
    repeated: bool = False


LIMIT = Query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT})
ORDER = Query("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"})
AFTER = Query("after", {"type": "string", "maxLength": QUERY_CHARACTERS})


class RouteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    #: The name of the operation in the OpenAPI document.
    name: str
    summary: str
    handler: Handler
    answer: type[msgspec.Struct] | None = None
    #: What the body must be: a struct, or the name of a schema that the document describes itself; None: no body.
    body: type[msgspec.Struct] | str | None = None
    #: Whether a body may be left out.
    body_optional: bool = False
    query: tuple[Query, ...] = ()
    #: Statuses of errors beside those that every route has.
    errors: tuple[str, ...] = ()
    #: Whether the answer may be server-sent events.
    streams: bool = False
    #: Whether a model server is asked, so that it needs a place at the door.
    asks_model: bool = False
    #: Whether it is an addition of ours to the API.
    ours: bool = False
    #: Whether it answers without a key.
    open: bool = False


def check_query(spec: RouteSpec, request: Request) -> None:
    """Raise for a query parameter that the route does not have, or one that is unreasonably long."""
    known = {query.name for query in spec.query} | {
        f"{query.name}[]" for query in spec.query if query.repeated
    }
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise RequestError(
                f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
            )
        if len(value) > QUERY_CHARACTERS:
            raise RequestError(
                f"Invalid '{name}': string too long. Expected a string with maximum length {QUERY_CHARACTERS}, "
                f"but got a string with length {len(value)} instead.",
                param=name,
                code="string_above_max_length",
            )


def read_integer(call: Call, name: str, default: int, *, minimum: int, maximum: int | None = None) -> int:
    """A query parameter that is a whole number."""
    text = call.get_query(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 9):
        raise RequestError(
            f"Invalid type for '{name}': expected an integer, but got '{text[:50]}' instead.",
            param=name,
            code="invalid_type",
        )
    number = int(text)
    if number < minimum:
        raise RequestError(
            f"Invalid '{name}': integer below minimum value. Expected a value >= {minimum}, "
            f"but got {number} instead.",
            param=name,
            code="integer_below_min_value",
        )
    if maximum is not None and number > maximum:
        raise RequestError(
            f"Invalid '{name}': integer above maximum value. Expected a value <= {maximum}, "
            f"but got {number} instead.",
            param=name,
            code="integer_above_max_value",
        )
    return number


def read_limit(call: Call) -> int:
    """How many rows a page may have."""
    return read_integer(call, "limit", DEFAULT_LIMIT, minimum=1, maximum=MAX_LIMIT)


def read_newest_first(call: Call) -> bool:
    """The order of a list."""
    return read_word(call, "order", ("asc", "desc"), "desc") == "desc"


def read_flag(call: Call, name: str) -> bool:
    """A query parameter that is `true` or `false`."""
    return read_word(call, name, ("true", "false"), "false") == "true"


def read_word(call: Call, name: str, words: tuple[str, ...], default: str) -> str:
    """A query parameter that is one of a few words."""
    word = call.get_query(name)
    if word is None:
        return default
    if word not in words:
        supported = " and ".join(f"'{each}'" for each in words)
        raise RequestError(
            f"Invalid value: '{word[:50]}'. Supported values are: {supported}.",
            param=name,
            code="invalid_value",
        )
    return word
