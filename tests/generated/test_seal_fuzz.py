"""Damaged, swapped and invented seals of windows: each is refused as a seal, and no word of what it holds comes out.

Fuzzed twice: `context.seal` with `context.sealed_window`, which every entrance uses; and a whole server through all of
its entrances. The same seed makes the same seals.
"""

import base64
import hashlib
import json
import os
import random
import string
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from antiphon.context.left_out import LeftOut
from antiphon.context.seal import (
    KEY_BYTES,
    NONCE_BYTES,
    PREFIX,
    SealError,
    SealKeys,
    SealKind,
    derive_key_id,
    open_seal,
    seal,
)
from antiphon.context.sealed_window import SealedItem, SealedWindow, decode_window, encode_window
from antiphon.server.keys import DEFAULT_TENANT
from tests.fake_upstream import MODEL
from tests.scenarios.compaction_talk import CompactingHouse, Model, run, show_prompt, user

#: Seals in the default run, and under the marker `fuzz`; those that a whole server is asked with are fewer.
SMALL, LARGE = 2_000, 200_000
SMALL_ASKED, LARGE_ASKED = 60, 2_000
TENANTS = (DEFAULT_TENANT, "bob", "", "bob\0", "böb")
KINDS: tuple[SealKind, ...] = ("compaction", "reasoning")
#: In every window and nowhere else: it must never be told.
SECRET = "planted-word"
_SAFE = string.ascii_letters + string.digits + "-_"


class Made(NamedTuple):
    """A seal, and whom it was made for."""

    text: str
    kind: SealKind
    tenant: str
    key_id: str
    plain: bytes

    @property
    def summary(self) -> str:
        return decode_window(self.plain).summary


class SealFuzzer:
    """Makes good seals, spoils them, and opens what came of it.

    `server`: the keys of the server that is fuzzed; without it a current key and an old one. There is always one more,
    which the server does not have.
    """

    def __init__(self, seed: int, server: SealKeys | None = None) -> None:
        self._chance = random.Random(seed)
        current, old, lost = (self._chance.randbytes(KEY_BYTES) for _ in range(3))
        own = {derive_key_id(key): key for key in (current, old)}
        self.server = server or SealKeys(own, derive_key_id(current))
        self._sealers = [SealKeys({derive_key_id(lost): lost}, derive_key_id(lost))]
        self._sealers += [server] if server else [SealKeys(own, key_id) for key_id in own]
        self.made = [self._make() for _ in range(40)]
        #: Some that surely open for the tenant that a server without keys has.
        self.good = [self._make(self._sealers[1], "compaction", DEFAULT_TENANT) for _ in range(8)]
        self.made += self.good
        self.outcomes: Counter[str] = Counter()
        self._spoilers: list[Callable[[Made], str]] = [
            self._flip_bits,
            self._flip_characters,
            self._cut,
            self._stretch,
            self._splice,
            self._change_head,
            self._change_prefix,
            self._recode,
            self._invent,
            lambda made: made.text,
        ]

    def make_text(self) -> tuple[Made, str]:
        """A good seal and what was made of it, which may be itself."""
        made = self._chance.choice(self.made)
        return made, self._chance.choice(self._spoilers)(made)

    def find_opening(self, text: str, kind: SealKind, tenant: str) -> Made | None:
        """The seal that a text is, where the server must open it for this kind and tenant."""
        found = [each for each in self.made if (each.text, each.kind, each.tenant) == (text, kind, tenant)]
        return found[0] if found and found[0].key_id in self.server.ids else None

    def run(self, count: int) -> None:
        """Open so many texts, each as one of its tenants may or may not."""
        for _ in range(count):
            made, text = self.make_text()
            kind = made.kind if self._chance.random() < 0.8 else self._chance.choice(KINDS)
            tenant = made.tenant if self._chance.random() < 0.8 else self._chance.choice(TENANTS)
            self._open(text, kind, tenant)

    def run_windows(self, count: int) -> None:
        """Read so many spoiled windows from seals that are whole: what another version or a fault may have written."""
        for _ in range(count):
            plain = self._spoil(self._chance.choice(self.made).plain)
            text = seal(
                plain,
                kind="compaction",
                tenant="bob",
                keys=self.server,
                nonce=self._chance.randbytes(NONCE_BYTES),
            )
            opened = open_seal(text, kind="compaction", tenant="bob", keys=self.server)
            assert opened == plain
            try:
                decode_window(opened)
            except msgspec.MsgspecError:
                self.outcomes["no window"] += 1
            else:
                self.outcomes["window"] += 1

    def _open(self, text: str, kind: SealKind, tenant: str) -> None:
        try:
            plain = open_seal(text, kind=kind, tenant=tenant, keys=self.server)
        except SealError as error:
            assert self.find_opening(text, kind, tenant) is None
            self.outcomes[error.reason] += 1
            told = "".join(traceback.format_exception(error)) + repr(error) + repr(error.to_object())
            assert SECRET not in told
            return
        self.outcomes["opened"] += 1
        made = self.find_opening(text, kind, tenant)
        assert made is not None
        assert made.plain == plain
        assert SECRET in made.summary

    def _make(
        self, keys: SealKeys | None = None, kind: SealKind | None = None, tenant: str | None = None
    ) -> Made:
        chance = self._chance
        keys = keys or chance.choice(self._sealers)
        made_for = chance.choice(KINDS) if kind is None else kind
        tenant = chance.choice(TENANTS) if tenant is None else tenant
        items = [
            SealedItem(f"msg_{number}", "resp_1", b'{"role":"user","content":"%d"}' % number)
            for number in range(chance.randrange(6))
        ]
        window = SealedWindow(
            id=f"cmp_{chance.getrandbits(64):x}",
            model="m",
            summary=f"{SECRET} {chance.getrandbits(64)}",
            facts=("Paths: a.py",) * chance.randrange(3),
            left_out=(LeftOut("msg_1", "msg_5", 5, 50),) * chance.randrange(3),
            items=tuple(items),
            covers=b"".join(hashlib.sha256(item.raw).digest() for item in items),
        )
        plain = encode_window(window)
        text = seal(plain, kind=made_for, tenant=tenant, keys=keys, nonce=chance.randbytes(NONCE_BYTES))
        return Made(text, made_for, tenant, keys.current, plain)

    # Spoilers

    def _spoil(self, data: bytes) -> bytes:
        """Bytes with a few of them changed, taken out, put in, doubled or cut."""
        spoiled = bytearray(data)
        for _ in range(self._chance.randrange(1, 5)):
            at = self._chance.randrange(len(spoiled) or 1)
            what = self._chance.randrange(5)
            if what == 0 and spoiled:
                spoiled[at] ^= 1 << self._chance.randrange(8)
            elif what == 1:
                del spoiled[at : at + self._chance.randrange(1, 9)]
            elif what == 2:
                spoiled[at:at] = self._chance.randbytes(self._chance.randrange(1, 9))
            elif what == 3:
                spoiled[at:at] = spoiled[at : at + self._chance.randrange(1, 99)]
            else:
                del spoiled[at:]
        return bytes(spoiled)

    def _flip_bits(self, made: Made) -> str:
        return PREFIX + _encode(self._spoil(_decode(made.text)))

    def _flip_characters(self, made: Made) -> str:
        text = list(made.text)
        for _ in range(self._chance.randrange(1, 4)):
            text[self._chance.randrange(len(text))] = self._chance.choice(_SAFE + "=+/ \nü\0")
        return "".join(text)

    def _cut(self, made: Made) -> str:
        start = self._chance.choice((0, 0, self._chance.randrange(len(made.text))))
        return made.text[start : self._chance.randrange(len(made.text))]

    def _stretch(self, made: Made) -> str:
        more = self._chance.choice(("=", "A", "\n", " ", "==", self._chance.choice(self.made).text))
        return self._chance.choice((made.text + more, more + made.text))

    def _splice(self, made: Made) -> str:
        """The head of one seal on the body of another, at the same or at any place."""
        one, other = _decode(made.text), _decode(self._chance.choice(self.made).text)
        at = self._chance.choice((2, 10, 10 + NONCE_BYTES, self._chance.randrange(len(one))))
        return PREFIX + _encode(one[:at] + other[at:])

    def _change_head(self, made: Made) -> str:
        blob = bytearray(_decode(made.text))
        choice = self._chance.randrange(3)
        if choice == 0:
            blob[0] = self._chance.randrange(256)
        elif choice == 1:
            blob[1] = self._chance.randrange(256)
        else:
            blob[2:10] = self._chance.choice(self._sealers).current.encode()
        return PREFIX + _encode(bytes(blob))

    def _change_prefix(self, made: Made) -> str:
        prefix = self._chance.choice(("", "Antiphon_", "antiphon", PREFIX * 2, "gAAAAA", '{"type":'))
        return prefix + made.text.removeprefix(PREFIX)

    def _recode(self, made: Made) -> str:
        """The same bytes in another spelling, and other alphabets."""
        body = made.text.removeprefix(PREFIX)
        return PREFIX + self._chance.choice(
            (
                base64.b64encode(_decode(made.text)).decode(),
                base64.b32encode(_decode(made.text)).decode(),
                _decode(made.text).hex(),
                body + "=" * (-len(body) % 4),
                body.swapcase(),
                body[:-1] + self._chance.choice(_SAFE),
            )
        )

    def _invent(self, made: Made) -> str:
        size = self._chance.randrange(200)
        body = self._chance.choice(
            (
                "".join(self._chance.choices(_SAFE, k=size)),
                "".join(chr(self._chance.randrange(0x110000)) for _ in range(size)),
                _encode(made.text.encode()),
                _encode(made.plain),
                _encode(bytes((1, 8)) + made.key_id.encode() + self._chance.randbytes(size)),
            )
        )
        return self._chance.choice((PREFIX, "")) + body


def _decode(text: str) -> bytes:
    body = text.removeprefix(PREFIX)
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


def _encode(blob: bytes) -> str:
    return base64.urlsafe_b64encode(blob).rstrip(b"=").decode()


def list_reasons() -> Iterator[str]:
    """What must have come out of a run: every way but the one that takes megabytes, and the one of the store."""
    yield from ("opened", "damaged", "foreign", "unknown_key", "unknown_version", "no window", "window")


def fuzz(seed: int, count: int) -> SealFuzzer:
    fuzzer = SealFuzzer(seed)
    try:
        fuzzer.run(count)
        fuzzer.run_windows(count // 4)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return fuzzer


def test_spoiled_seals_are_refused_and_tell_nothing() -> None:
    """Ours: a small part of the long run, from a seed that stays."""
    fuzzer = fuzz(1, SMALL)
    assert set(fuzzer.outcomes) == set(list_reasons())


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_spoiled_seals_are_refused_and_tell_nothing() -> None:
    """Ours: from a seed that is printed; FUZZ_SEED repeats one."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"FUZZ_SEED={seed}")
    fuzzer = fuzz(seed, LARGE)
    print(dict(fuzzer.outcomes))
    assert set(fuzzer.outcomes) == set(list_reasons())


# A whole server


async def ask(talk: CompactingHouse, fuzzer: SealFuzzer, chance: random.Random) -> None:
    """One request with one seal, good or bad, by any entrance."""
    text = chance.choice(fuzzer.good).text if chance.random() < 0.1 else fuzzer.make_text()[1]
    # A client cannot send half a character.
    text = text.encode("utf-8", "replace").decode()
    opening = fuzzer.find_opening(text, "compaction", DEFAULT_TENANT)
    kind = chance.choice(("compaction", "compaction", "compaction_summary"))
    item: dict[str, Any] = {"type": kind, "encrypted_content": text}
    if chance.random() < 0.5:
        item["id"] = "cmp_1"
    items = [user("Begin."), item, user("Go on.")]
    path = chance.choice(
        ("/v1/responses", "/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens")
    )
    body: dict[str, Any] = {"model": MODEL, "input": items}
    if path == "/v1/responses":
        body["store"] = chance.random() < 0.5
        if chance.random() < 0.3:
            items.append({"type": "compaction_trigger"})
    before = len(talk.model.rounds)
    answer = await talk.client.send("POST", path, body)
    told = json.dumps(answer.body, ensure_ascii=False)
    if opening is not None:
        assert answer.status == 200, told
        if len(talk.model.rounds) > before:
            assert opening.summary in show_prompt(talk.model.rounds[-1])
        fuzzer.outcomes["opened"] += 1
        return
    assert answer.status == 400, (text, told)
    assert answer.error["code"] in ("invalid_encrypted_content", "invalid_value"), (text, told)
    assert SECRET not in told
    assert len(talk.model.rounds) == before
    fuzzer.outcomes["refused"] += 1


def fuzz_server(folder: Path, seed: int, count: int) -> None:
    """So many requests to a server whose model is shown only what its own seals hold."""

    async def story(talk: CompactingHouse) -> None:
        fuzzer = SealFuzzer(seed, talk.house.engine.services.seal_keys)
        chance = random.Random(seed)
        for _ in range(count):
            await ask(talk, fuzzer, chance)
        assert set(fuzzer.outcomes) == {"opened", "refused"}

    try:
        run(folder, Model(), story, window_tokens=6_000)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def test_spoiled_seals_never_fail_a_server(tmp_path: Path) -> None:
    """Ours, security: by every entrance a bad seal is a bad request, and nothing of it is told or shown."""
    fuzz_server(tmp_path, 4, SMALL_ASKED)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_many_spoiled_seals_never_fail_a_server(tmp_path: Path) -> None:
    """Ours, security: from a seed that is printed; FUZZ_SEED repeats one."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"FUZZ_SEED={seed}")
    for part in range(LARGE_ASKED // 200):
        fuzz_server(tmp_path / str(part), seed + part, 200)


# One by one


@pytest.mark.parametrize("mine", TENANTS)
def test_a_seal_of_one_tenant_opens_for_no_other(mine: str) -> None:
    """Ours, security: and it is told apart from a damaged one in no way."""
    fuzzer = SealFuzzer(2)
    text = seal(b"plain", kind="compaction", tenant=mine, keys=fuzzer.server, nonce=bytes(NONCE_BYTES))
    for tenant in TENANTS:
        if tenant == mine:
            assert open_seal(text, kind="compaction", tenant=tenant, keys=fuzzer.server) == b"plain"
            continue
        with pytest.raises(SealError) as caught:
            open_seal(text, kind="compaction", tenant=tenant, keys=fuzzer.server)
        assert caught.value.reason == "damaged"


def test_every_cut_and_every_flipped_bit_of_a_seal_is_refused() -> None:
    """Ours, security: all of them, of one seal."""
    fuzzer = SealFuzzer(3)
    made = next(each for each in fuzzer.made if each.key_id == fuzzer.server.current)
    blob = _decode(made.text)
    flipped = (
        blob[:at] + bytes((blob[at] ^ 1 << bit,)) + blob[at + 1 :]
        for at in range(len(blob))
        for bit in range(8)
    )
    texts = [made.text[:end] for end in range(len(made.text))] + [PREFIX + _encode(each) for each in flipped]
    for text in texts:
        with pytest.raises(SealError):
            open_seal(text, kind=made.kind, tenant=made.tenant, keys=fuzzer.server)
