"""From what a user types to where the Responses API is.

It looks at the text alone and reaches nothing.
"""

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

#: What a bare host gets.
DEFAULT_PREFIX = "/v1"

_RESPONSES = "/responses"


class AddressError(ValueError):
    """This is not the address of a server."""


def resolve_responses_url(url: str) -> tuple[str, str]:
    """The base of a server and the path before `/responses`.

    `localhost:11434` -> ("http://localhost:11434", "/v1"); `http://h/v1` -> ("http://h", "/v1");
    `https://h/a/v1/responses` -> ("https://h", "/a/v1"). Without a scheme it is https for a public name
    without a port, so that a key never leaves in clear by accident, else http. Raises `AddressError`.
    """
    text = url.strip()
    parts = _split(text if "://" in text else f"//{text}", url)
    scheme = parts.scheme or _guess_scheme(parts)
    path = parts.path.rstrip("/")
    if path.endswith(_RESPONSES):
        prefix = path.removesuffix(_RESPONSES).rstrip("/")
    else:
        prefix = path or DEFAULT_PREFIX
    return f"{scheme}://{parts.netloc}", prefix


def _split(text: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as malformed:
        raise AddressError(f"{url!r} is not an address: {malformed}") from malformed
    if parts.scheme not in ("", "http", "https"):
        raise AddressError(f"{url!r}: only http and https can be used, not {parts.scheme}")
    if not has_host or any(character.isspace() for character in text):
        raise AddressError(f"{url!r} names no host")
    if parts.username is not None:
        raise AddressError("an address must hold no user name or password; give the key separately")
    if parts.query or parts.fragment:
        raise AddressError(f"{url!r}: a query or a fragment cannot be used here")
    return parts


def _guess_scheme(parts: SplitResult) -> str:
    host = parts.hostname or ""
    is_public = "." in host and not host.endswith((".local", ".localhost")) and not _is_ip_address(host)
    return "https" if is_public and parts.port in (None, 443) else "http"


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
