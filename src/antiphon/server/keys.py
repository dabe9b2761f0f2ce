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


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one key may ask; 0 is no limit. `name` is the key's in the configuration."""

    name: str
    #: Responses at once.
    max_responses: int = 0
    requests_per_minute: int = 0


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key: its digest, the tenant whose data it sees, whether anything is kept for it, and its limits."""

    sha256: str
    tenant: str
    zero_retention: bool = False
    limits: KeyLimits | None = None


class Access(msgspec.Struct, frozen=True):
    """What a request may do: whose data it sees, whether nothing of it may be kept, and its key's limits."""

    tenant: str
    zero_retention: bool = False
    limits: KeyLimits | None = None


class Keyring:
    """The keys that this server knows; with `zero_retention` nothing is kept for any of them, or without keys."""

    def __init__(self, keys: Iterable[Key] = (), *, zero_retention: bool = False) -> None:
        self._accesses = {
            key.sha256.lower(): Access(key.tenant, zero_retention or key.zero_retention, key.limits)
            for key in keys
        }
        self._keyless = Access(DEFAULT_TENANT, zero_retention)

    def find_access(self, headers: dict[bytes, bytes]) -> Access:
        """What a request may do; raises when it may not ask."""
        if not self._accesses:
            _check_local(headers)
            return self._keyless
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise AuthenticationError(
                "You didn't provide an API key. Send it in the header 'Authorization: Bearer KEY'."
            )
        access = self._accesses.get(hashlib.sha256(key.strip()).hexdigest())
        if access is None:
            raise AuthenticationError
        return access

    def find_open_access(self) -> Access:
        """What anybody may do: nothing that concerns a tenant's data."""
        return Access("", self._keyless.zero_retention)


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
