"""API keys: whose data a request may see."""

import hashlib

import pytest

from antiphon.protocol.errors import AuthenticationError, ForbiddenError
from antiphon.server import Key, Keyring
from antiphon.server.keys import DEFAULT_TENANT, Access


def digest(key: str) -> str:
    """What a keyring holds of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


RING = Keyring([Key(sha256=digest("a"), tenant="anna"), Key(sha256=digest("b").upper(), tenant="ben")])


@pytest.mark.parametrize(
    ("header", "tenant"),
    [(b"Bearer a", "anna"), (b"bearer b", "ben"), (b"BEARER  a ", "anna")],
)
def test_a_key_belongs_to_a_tenant(header: bytes, tenant: str) -> None:
    """Ours: each key belongs to a tenant."""
    assert RING.find_access({b"authorization": header}) == Access(tenant)


@pytest.mark.parametrize(
    "header", [None, b"", b"Bearer", b"Bearer ", b"Bearer c", b"Basic a", b"a", b"Bearer a b", b"\xff \xff"]
)
def test_anything_else_is_refused(header: bytes | None) -> None:
    """Responses API 6: 401, invalid_api_key."""
    with pytest.raises(AuthenticationError) as caught:
        RING.find_access({} if header is None else {b"authorization": header})
    assert caught.value.code == "invalid_api_key"


def test_the_digest_itself_is_no_key() -> None:
    """Invariant: keys are known by their SHA-256 alone."""
    with pytest.raises(AuthenticationError):
        RING.find_access({b"authorization": b"Bearer " + digest("a").encode()})


@pytest.mark.parametrize(
    "name", ["localhost", "localhost:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:80"]
)
def test_without_keys_names_of_this_machine_are_served(name: str) -> None:
    """Ours: with no keys, loopback only."""
    assert Keyring().find_access({b"host": name.encode()}) == Access(DEFAULT_TENANT)
    assert Keyring().find_access({b"origin": f"http://{name}".encode()}) == Access(DEFAULT_TENANT)


@pytest.mark.parametrize(
    "name",
    [
        "example.org",
        "127.0.0.1.example.org",
        "127.example.org",
        "127.",
        "localhost.example.org",
        "example.org:127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "[::2]",
        "[::ffff:10.0.0.1]",
        "localhost@example.org",
        "\xff",
    ],
)
def test_without_keys_other_names_are_refused(name: str) -> None:
    """Ours: a web page that points its own name at 127.0.0.1 must not read somebody's conversations."""
    with pytest.raises(ForbiddenError):
        Keyring().find_access({b"host": name.encode("latin-1")})
    with pytest.raises(ForbiddenError):
        Keyring().find_access({b"origin": f"http://{name}".encode("latin-1")})


def test_a_key_tells_whether_anything_is_kept_for_it() -> None:
    """Decided: zero retention can be set for a key; another key of the same tenant may keep."""
    ring = Keyring(
        [
            Key(sha256=digest("a"), tenant="anna", zero_retention=True),
            Key(sha256=digest("b"), tenant="anna"),
        ]
    )
    assert ring.find_access({b"authorization": b"Bearer a"}) == Access("anna", zero_retention=True)
    assert ring.find_access({b"authorization": b"Bearer b"}) == Access("anna", zero_retention=False)
    with pytest.raises(AuthenticationError):
        ring.find_access({b"authorization": b"Bearer c"})


def test_zero_retention_of_the_server_holds_for_every_key_and_without_keys() -> None:
    """Decided: zero retention can be set for the server; no key undoes it."""
    ring = Keyring(
        [Key(sha256=digest("a"), tenant="anna", zero_retention=False)],
        zero_retention=True,
    )
    assert ring.find_access({b"authorization": b"Bearer a"}) == Access("anna", zero_retention=True)
    assert Keyring(zero_retention=True).find_access({}) == Access(DEFAULT_TENANT, zero_retention=True)
    assert Keyring().find_access({}) == Access(DEFAULT_TENANT, zero_retention=False)


def test_open_addresses_see_no_tenant_s_data() -> None:
    """Ours: /health and the like need no key, and have none."""
    assert Keyring([Key(sha256=digest("a"), tenant="anna")]).find_open_access() == Access("")
    assert Keyring(zero_retention=True).find_open_access() == Access("", zero_retention=True)


def test_a_keyring_without_keys_is_still_one() -> None:
    """Ours: `keys or Keyring()` must not forget that nothing is kept."""
    assert Keyring(zero_retention=True)
