"""Compaction items opened: the window that each holds, checked against what was deleted since.

It knows seals, items and the store of nodes, no request. Invariants: another tenant's item, a damaged one and one that
covers something deleted open for nobody; and what was accepted before and does not open any more is no error, for the
items that it stood for are still there.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from antiphon.context.ollama_payload import OllamaPayloadError, decode_ollama_payload
from antiphon.context.rows import Row
from antiphon.context.seal import NONCE_BYTES, SealError, SealKeys, is_seal, open_seal, seal
from antiphon.context.sealed_window import (
    SealedItem,
    SealedWindow,
    decode_window,
    encode_window,
    hash_item,
)
from antiphon.engine.paths import read_blanks
from antiphon.engine.round_store import RoundStore
from antiphon.engine.sealing import make_seal_refusal
from antiphon.protocol.errors import RequestError
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import Compaction, CompactionSummary, Item, encode_item
from antiphon.sessions import Node

#: Opened windows that are kept: a client that holds its history sends the same items with each request.
KEPT_WINDOWS = 256
KEPT_BYTES = 64 << 20
#: A readable item of Ollama's says what it is at its beginning.
OLLAMA_CLAIM_CHARACTERS = 200

#: (tenant, SHA-256 of the blob)
_Key: TypeAlias = tuple[str, bytes]


class DeadWindowError(SealError):
    """The window covers something that was deleted."""

    def __init__(self) -> None:
        super().__init__("deleted")


class _Kept(msgspec.Struct):
    window: SealedWindow
    size: int
    #: The deletions that it was checked against.
    deletion_count: int = -1


class OpenedWindows:
    """Windows that were opened lately, in memory alone, bounded."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._size = 0

    def open(self, text: str, tenant: str, keys: SealKeys) -> _Kept:
        """The window of a seal; raises `SealError`."""
        key = (tenant, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        plain = open_seal(text, kind="compaction", tenant=tenant, keys=keys)
        try:
            window = decode_window(plain)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise SealError("damaged") from None
        kept = _Kept(window, len(plain))
        self._kept[key] = kept
        self._size += kept.size
        while self._kept and (len(self._kept) > KEPT_WINDOWS or self._size > self._limit_bytes):
            _, dropped = self._kept.popitem(last=False)
            self._size -= dropped.size
        return kept

    def forget(self) -> None:
        """Something was deleted: nothing that may hold it stays in memory."""
        self._kept.clear()
        self._size = 0


def seal_window(window: SealedWindow, tenant: str, keys: SealKeys) -> Item:
    """The compaction item that holds a window; raises `SealError` ("too_large")."""
    sealed = seal(
        encode_window(window),
        kind="compaction",
        tenant=tenant,
        keys=keys,
        nonce=secrets.token_bytes(NONCE_BYTES),
    )
    return encode_item(Compaction(id=window.id, encrypted_content=sealed))


def is_compaction(item: Item) -> bool:
    """Whether an item is a compaction, by either name."""
    return isinstance(item.value, Compaction | CompactionSummary)


def is_own_seal(item: Item) -> bool:
    """Whether an item is a compaction that a server like this one has sealed."""
    value = item.value
    return isinstance(value, Compaction | CompactionSummary) and is_seal(value.encrypted_content)


class WindowOpener:
    """Opens the compaction items of one tenant's paths."""

    def __init__(
        self,
        tenant: str,
        *,
        keys: SealKeys,
        opened: OpenedWindows,
        store: RoundStore,
        deletion_count: int,
        accepts_ollama: bool,
        passes_foreign: bool,
    ) -> None:
        """`passes_foreign`: items that are not ours go to a server that speaks Responses, as they are."""
        self._tenant = tenant
        self._keys = keys
        self._opened = opened
        self._store = store
        self._deletion_count = deletion_count
        self._accepts_ollama = accepts_ollama
        self._passes_foreign = passes_foreign

    async def open_sent(self, items: Sequence[Item], ids: Sequence[str]) -> dict[str, SealedWindow]:
        """The windows of the compaction items of an input, by the ids of its rows.

        Raises `RequestError` (invalid_encrypted_content) for one that does not open.
        """
        windows: dict[str, SealedWindow] = {}
        for position, (item, row_id) in enumerate(zip(items, ids, strict=True)):
            value = item.value
            if not isinstance(value, Compaction | CompactionSummary):
                continue
            text = value.encrypted_content
            try:
                window = await self._open(text, row_id)
            except SealError as error:
                if error.reason == "foreign" and '"ollama_compaction"' in text[:OLLAMA_CLAIM_CHARACTERS]:
                    reason = (
                        "It was not sealed by this server. If it is a readable item of Ollama's, whoever runs this "
                        "server can allow such items with the setting compaction.accept_ollama."
                    )
                    raise _refuse_payload(reason, value.id, f"input[{position}]") from error
                raise make_seal_refusal(error, value.id, text, f"input[{position}]") from error
            except OllamaPayloadError as error:
                raise _refuse_payload(error.message, value.id, f"input[{position}]") from error
            if window is not None:
                windows[row_id] = window
        return windows

    async def open_kept(
        self, rows: Sequence[Row], path: Sequence[Node]
    ) -> tuple[dict[str, SealedWindow], list[str]]:
        """The windows of a stored path's compaction items, by row id, and what is told of those that do not open."""
        windows: dict[str, SealedWindow] = {}
        notes: list[str] = []
        for row in rows:
            value = row.item.value
            if not isinstance(value, Compaction | CompactionSummary):
                continue
            try:
                window = await self._open(value.encrypted_content, row.id, path)
            except (SealError, OllamaPayloadError):
                notes.append(
                    f"The compaction {row.id} does not open any more, or covers something that was deleted; the "
                    "model is shown what is left of the items that it stood for."
                )
                continue
            if window is not None:
                windows[row.id] = window
        return windows, notes

    async def _open(self, text: str, row_id: str, path: Sequence[Node] = ()) -> SealedWindow | None:
        if not is_seal(text):
            return self._open_foreign(text, row_id)
        kept = self._opened.open(text, self._tenant, self._keys)
        if kept.deletion_count != self._deletion_count:
            await self._check_deletions(kept.window, path)
            kept.deletion_count = self._deletion_count
        return kept.window

    def _open_foreign(self, text: str, row_id: str) -> SealedWindow | None:
        payload = decode_ollama_payload(text) if self._accepts_ollama else None
        if payload is None:
            if self._passes_foreign:
                return None
            raise SealError("foreign")
        return SealedWindow(
            id=row_id,
            model="",
            summary=payload.summary,
            # It names nothing that it stands for; what it holds itself stands there once all the same.
            covers=b"".join(map(hash_item, payload.items)),
            items=tuple(
                SealedItem(_derive_id(item, row_id, position), "", item.raw)
                for position, item in enumerate(payload.items)
            ),
        )

    async def _check_deletions(self, window: SealedWindow, path: Sequence[Node]) -> None:
        """A seal that covers a deleted item dies with it; what another server stored is not here, and is not asked."""
        nodes = {node.id: node for node in path}
        elsewhere = [node.id for node in window.nodes if node.id not in nodes]
        if elsewhere:
            if await self._store.find_deleted(self._tenant, elsewhere):
                raise DeadWindowError
            while elsewhere:
                # A window may have been made from several paths.
                last = elsewhere.pop()
                if last not in nodes:
                    other = await self._store.load_path(self._tenant, last, skip_deleted=True)
                    nodes.update((node.id, node) for node in other or ())
        for sealed in window.nodes:
            node = nodes.get(sealed.id)
            if node is not None and set(read_blanks(node)) - set(sealed.blanks):
                raise DeadWindowError


def _derive_id(item: Item, row_id: str, position: int) -> str:
    """An id for an item that came without one and is stored nowhere; never of the form that tells node and place."""
    prefix = derive_item_id(item.type, "", 0).partition("_")[0]
    return f"{prefix}_{hashlib.sha256(f'{row_id} {position}'.encode()).hexdigest()[:32]}"


def _refuse_payload(reason: str, item_id: str | None, where: str) -> RequestError:
    subject = f"for item {item_id}" if item_id is not None else f"at {where}"
    return RequestError(
        f"The encrypted content {subject} could not be verified. Reason: {reason}",
        code="invalid_encrypted_content",
    )
