"""Request headers by name. It knows no values; invariant: what decides who asks, and of what, comes once."""

from antiphon.protocol.errors import RequestError

_SINGLE_HEADERS = (
    b"host",
    b"authorization",
    b"content-type",
    b"content-encoding",
    b"content-length",
    b"origin",
)


def read_headers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; one that decides who asks, and of what, must not come twice."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        names = [name for name, _ in pairs]
        for name in _SINGLE_HEADERS:
            if names.count(name) > 1:
                raise RequestError(f"The header '{name.decode()}' came more than once; send it once.")
    return headers
