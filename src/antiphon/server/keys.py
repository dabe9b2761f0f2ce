"""API keys: which tenant a request belongs to, and who may ask at all.

Keys are known by their SHA-256 alone. Invariant: with no keys configured only this machine is served,
and only pages of this machine may make a browser send anything.
"""

import hashlib
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from antiphon.protocol.errors import AuthenticationError, ForbiddenError

#: Whose data it is when no keys are configured.
DEFAULT_TENANT = "default"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key: its digest, and the tenant whose data it sees."""

    sha256: str
    tenant: str


class Keyring:
    """The keys that this server knows."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._tenants = {key.sha256.lower(): key.tenant for key in keys}

    def __len__(self) -> int:
        return len(self._tenants)

    def find_tenant(self, headers: dict[bytes, bytes]) -> str:
        """The tenant of a request; raises when it may not ask."""
        if not self._tenants:
            _check_local(headers)
            return DEFAULT_TENANT
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise AuthenticationError(
                "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'."
            )
        tenant = self._tenants.get(hashlib.sha256(key.strip()).hexdigest())
        if tenant is None:
            raise AuthenticationError
        return tenant


def _check_local(headers: dict[bytes, bytes]) -> None:
    """Without keys, a web page must not reach the server through its visitor's browser."""
    host = headers.get(b"host")
    if host is not None and not _is_local(f"//{host.decode('latin-1')}"):
        raise ForbiddenError(
            "This server has no API keys, so it answers under the names of this machine alone "
            "(127.0.0.1, localhost). Configure a key to serve others."
        )
    origin = headers.get(b"origin")
    if origin is not None and not _is_local(origin.decode("latin-1")):
        raise ForbiddenError("This server has no API keys, so web pages from elsewhere may not use it.")


def _is_local(url: str) -> bool:
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return False
    if name is None:
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        # "127.0.0.1.example.org" is a name, and anybody's.
        return name == "localhost"
