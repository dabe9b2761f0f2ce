"""Seals: they open for whom they were made, and nothing else ever opens or breaks anything."""

import base64
import zlib
from typing import get_args

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context import seal as sealing
from antiphon.context.seal import (
    PREFIX,
    REASONS,
    SealError,
    SealKeys,
    SealKind,
    SealReason,
    derive_key_id,
    is_seal,
    open_seal,
    seal,
)
from antiphon.protocol.item_types import ENCRYPTED_MAX_LENGTH

OLD, NEW, FOREIGN = bytes(32), bytes(range(32)), b"f" * 32
OLD_ID, NEW_ID, FOREIGN_ID = map(derive_key_id, (OLD, NEW, FOREIGN))
KEYS = SealKeys({NEW_ID: NEW, OLD_ID: OLD}, NEW_ID)
NONCE = b"n" * 12
PLAIN = "Думал, dass 42 richtig ist. ".encode() * 20


def make(
    plain: bytes = PLAIN,
    kind: SealKind = "reasoning",
    tenant: str = "ada",
    keys: SealKeys = KEYS,
    nonce: bytes = NONCE,
) -> str:
    """A seal of Ada's reasoning unless told otherwise."""
    return seal(plain, kind=kind, tenant=tenant, keys=keys, nonce=nonce)


def find_reason(
    text: str, kind: SealKind = "reasoning", tenant: str = "ada", keys: SealKeys = KEYS
) -> SealReason:
    """Why a text does not open."""
    with pytest.raises(SealError) as caught:
        open_seal(text, kind=kind, tenant=tenant, keys=keys)
    assert caught.value.message == REASONS[caught.value.reason]
    return caught.value.reason


def unpack(text: str) -> bytearray:
    """The bytes of a seal."""
    body = text.removeprefix(PREFIX)
    return bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))


def pack(blob: bytes) -> str:
    """The text of a seal's bytes."""
    return PREFIX + base64.urlsafe_b64encode(blob).rstrip(b"=").decode()


def forge(packed: bytes, key: bytes = NEW) -> str:
    """A seal with the right key around any bytes, compressed or not."""
    key_id = derive_key_id(key)
    bound = sealing._bind(1, key_id, "reasoning", "ada")
    body = ChaCha20Poly1305(key).encrypt(NONCE, packed, bound)
    return pack(bytes((1, len(key_id))) + key_id.encode() + NONCE + body)


@settings(max_examples=50)
@given(plain=st.binary(max_size=2000), tenant=st.text(), kind=st.sampled_from(get_args(SealKind)))
def test_what_was_sealed_is_opened(plain: bytes, tenant: str, kind: SealKind) -> None:
    """Ours: byte for byte, for any tenant's name."""
    text = make(plain, kind, tenant)
    assert is_seal(text)
    assert open_seal(text, kind=kind, tenant=tenant, keys=KEYS) == plain


def test_a_seal_is_safe_in_urls_compressed_and_shows_nothing() -> None:
    """Ours."""
    plain = b"the planted word marmalade " * 1000
    text = make(plain)
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert len(text) < len(plain) / 10
    assert b"marmalade" not in unpack(text)
    assert make(plain) == text
    assert make(plain, nonce=b"m" * 12) != text


def test_old_keys_open_and_the_current_one_seals() -> None:
    """Ours: rotation loses nothing."""
    before = make(keys=SealKeys({OLD_ID: OLD}, OLD_ID))
    assert open_seal(before, kind="reasoning", tenant="ada", keys=KEYS) == PLAIN
    assert NEW_ID.encode() in unpack(make())
    assert find_reason(make(), keys=SealKeys({OLD_ID: OLD}, OLD_ID)) == "unknown_key"


def test_another_tenant_s_seal_reads_as_a_damaged_one() -> None:
    """Ours: nobody learns that a seal is somebody else's."""
    damaged = unpack(make())
    damaged[-1] ^= 1
    assert find_reason(make(tenant="ben")) == find_reason(pack(bytes(damaged))) == "damaged"
    assert find_reason(make(kind="compaction")) == "damaged"
    assert find_reason(make(tenant="reasoningada", kind="compaction")) == "damaged"


def test_bindings_that_read_alike_when_joined_differ() -> None:
    """Ours: lengths are bound, so no part of one name can pass as part of another."""
    assert (
        len({sealing._bind(1, *parts) for parts in (("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"))})
        == 3
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "foreign"),
        ("gAAAAABo-a-seal-of-another-service==", "foreign"),
        (PREFIX[:-1], "foreign"),
        (PREFIX.upper(), "foreign"),
        (PREFIX, "damaged"),
        (PREFIX + "A", "damaged"),
        (PREFIX + "AQ", "damaged"),
        (PREFIX + "\u20ac\ud800", "damaged"),
        (PREFIX + "AQ==", "damaged"),
        (PREFIX + "AR", "damaged"),
        (pack(b"\x01\xff"), "damaged"),
        (pack(b"\x01\x08" + b"A" * 8 + bytes(40)), "damaged"),
        (pack(b"\x01\x00" + bytes(40)), "damaged"),
        (pack(b"\x02\x08" + NEW_ID.encode() + bytes(40)), "unknown_version"),
        (pack(b"\x01\x08" + FOREIGN_ID.encode() + bytes(40)), "unknown_key"),
        (pack(b"\x01\x08" + NEW_ID.encode()), "damaged"),
        (pack(b"\x01\x08" + NEW_ID.encode() + bytes(12)), "damaged"),
    ],
)
def test_what_is_no_seal_says_why(text: str, reason: SealReason) -> None:
    """Ours: damaged, unknown key and not ours are told apart; none of it crashes."""
    assert find_reason(text) == reason


def test_a_seal_has_one_spelling() -> None:
    """Ours: other spellings of the same base64 are damage, so that no part of the text is without meaning."""
    texts = [make(nonce=bytes((index,)) * 12) for index in range(40)]
    text = next(text for text in texts if "-" in text[len(PREFIX) :] or "_" in text[len(PREFIX) :])
    body = text.removeprefix(PREFIX)
    for other in (f"{body}=", f"{body}\n", f" {body}", body.replace("-", "+").replace("_", "/")):
        assert find_reason(PREFIX + other) == "damaged"


@settings(max_examples=300)
@given(st.data())
def test_no_change_of_a_seal_opens(data: st.DataObject) -> None:
    """Ours: any bit, any cut, anything added."""
    blob = unpack(make())
    kind = data.draw(st.sampled_from(["flip", "cut", "add", "splice"]))
    if kind == "flip":
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del blob[data.draw(st.integers(0, len(blob) - 1)) :]
    elif kind == "add":
        blob += data.draw(st.binary(min_size=1, max_size=40))
    else:
        other = unpack(make(b"another text", tenant="ben", nonce=b"o" * 12))
        at = data.draw(st.integers(1, min(len(blob), len(other)) - 1))
        blob = other[:at] + blob[at:]
        if bytes(blob) in (bytes(other), bytes(unpack(make()))):
            return
    assert find_reason(pack(bytes(blob))) in {"damaged", "unknown_key", "unknown_version"}


@settings(max_examples=300)
@given(st.one_of(st.text(), st.text().map(PREFIX.__add__), st.binary().map(pack)))
def test_no_text_at_all_crashes_or_opens(text: str) -> None:
    """Ours."""
    assert find_reason(text) in REASONS


@settings(max_examples=50)
@given(st.binary(max_size=300))
def test_no_contents_crash_even_under_the_right_key(packed: bytes) -> None:
    """Ours: whoever has the key can still not break the server with what is inside."""
    try:
        plain = zlib.decompress(packed)
    except zlib.error:
        assert find_reason(forge(packed)) == "damaged"
    else:
        assert open_seal(forge(packed), kind="reasoning", tenant="ada", keys=KEYS) == plain


def test_what_is_inside_must_be_whole_and_nothing_more() -> None:
    """Ours."""
    packed = zlib.compress(PLAIN)
    assert find_reason(forge(packed[:-1])) == "damaged"
    assert find_reason(forge(packed + b"x")) == "damaged"


def test_a_bomb_is_not_unpacked() -> None:
    """Ours: unpacking stops at the limit; this one would be 256 MiB."""
    packer = zlib.compressobj(9)
    piece = bytes(1 << 24)
    packed = b"".join(packer.compress(piece) for _ in range(16)) + packer.flush()
    assert find_reason(forge(packed)) == "too_large"


def test_sizes_are_limited_both_ways() -> None:
    """Responses API 2.4: encrypted_content has at most 20,971,520 characters."""
    assert find_reason(PREFIX + "A" * ENCRYPTED_MAX_LENGTH) == "too_large"
    with pytest.raises(SealError) as caught:
        make(bytes(sealing.PLAIN_MAX_BYTES + 1))
    assert caught.value.reason == "too_large"
    # Random bytes do not compress.
    noise = ChaCha20Poly1305(NEW).encrypt(NONCE, bytes(ENCRYPTED_MAX_LENGTH * 3 // 4), None)
    with pytest.raises(SealError) as caught:
        make(noise)
    assert caught.value.reason == "too_large"
    large = make(noise[: ENCRYPTED_MAX_LENGTH * 3 // 4 - 6000])
    assert ENCRYPTED_MAX_LENGTH * 0.99 < len(large) <= ENCRYPTED_MAX_LENGTH
    assert open_seal(large, kind="reasoning", tenant="ada", keys=KEYS) == noise[: -6000 - 16]


def test_keys_never_show_themselves() -> None:
    """Ours: not in reprs; an id tells nothing of its key."""
    shown = f"{KEYS!r} {KEYS}"
    assert NEW_ID in shown
    assert NEW.hex() not in shown
    assert repr(NEW) not in shown
    assert not hasattr(KEYS, "__dict__")


@pytest.mark.parametrize(
    ("keys", "current"),
    [
        ({}, "a"),
        ({"a": OLD}, "b"),
        ({"a": OLD[:-1]}, "a"),
        ({"a": OLD + b"x"}, "a"),
        ({"": OLD}, ""),
        ({"A": OLD}, "A"),
        ({"a" * 33: OLD}, "a" * 33),
        ({"\u00e4": OLD}, "\u00e4"),
    ],
)
def test_keys_that_cannot_seal_are_refused(keys: dict[str, bytes], current: str) -> None:
    """Ours."""
    with pytest.raises(ValueError) as caught:
        SealKeys(keys, current)
    assert OLD.hex() not in str(caught.value)
