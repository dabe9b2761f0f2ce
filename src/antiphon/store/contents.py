"""What is stored once: tenants, contents by hash, and the combinations of contents that nodes were made with.

It knows no nodes and no conversations. Invariant: a content is blanked only when nothing names it any more.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeAlias

from antiphon.store.interface import Record
from antiphon.store.statements import Statements

#: Combinations of settings whose keys are remembered; when full, the memory starts afresh.
KNOWN_LIMIT = 4096

#: The hashes of settings, instructions and tools.
Digests: TypeAlias = tuple[bytes, bytes | None, bytes | None]


class Contents:
    """Finds or adds what rows refer to by number; remembers what it found until `forget`."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._tenants: dict[str, int] = {}
        self._known: dict[tuple[int, bytes, bytes | None, bytes | None], int] = {}

    def find_known(self, tenant: int | None, digests: Digests) -> int | None:
        """The key of a combination that is remembered."""
        return None if tenant is None else self._known.get((tenant, *digests))

    def find_known_tenant(self, name: str) -> int | None:
        """The key of a tenant that is remembered."""
        return self._tenants.get(name)

    def find_tenant(self, name: str) -> int | None:
        """The key of a tenant; None for one that never stored anything."""
        if name in self._tenants:
            return self._tenants[name]
        row = self._sql.fetch("find_tenant", (name,))
        return None if row is None else int(row[0])

    def intern_tenant(self, name: str) -> int:
        """The key of a tenant, added if it is new."""
        if name not in self._tenants:
            if len(self._tenants) >= KNOWN_LIMIT:
                self.forget()
            self._tenants[name] = self._intern("tenant", (name,), (name,))
        return self._tenants[name]

    def intern_content(self, tenant: int, body: bytes, digest: bytes | None = None) -> int:
        """The key of a content, added if it is new; `digest` is its SHA-256 where that is known."""
        digest = digest or sha256(body).digest()
        return self._intern("content", (tenant, digest), (tenant, digest, body))

    def intern_settings(self, tenant: int, record: Record, digests: Digests) -> int:
        """The key of the combination that a record was made with, added if it is new."""
        known = self.find_known(tenant, digests)
        if known is not None:
            return known
        bodies = (record.settings, record.instructions, record.tools)
        contents = tuple(
            None if body is None else self.intern_content(tenant, body, digest)
            for body, digest in zip(bodies, digests, strict=True)
        )
        key = self._intern("settings", contents, contents)
        if len(self._known) >= KNOWN_LIMIT:
            self._known.clear()
        self._known[(tenant, *digests)] = key
        return key

    def drop_settings(self, key: int, contents: Sequence[int | None]) -> None:
        """Remove a combination that no node names any more, and its `contents` where nothing else does."""
        if self._sql.execute("drop_settings", (key,)).rowcount:
            self._known.clear()
            for content in contents:
                if content is not None:
                    self.drop_content(content)

    def drop_content(self, key: int) -> None:
        """Blank a content, unless something names it."""
        self._sql.execute("drop_content", (key,))

    def forget(self) -> None:
        """Remember nothing: what was looked up or added may have been rolled back."""
        self._tenants.clear()
        self._known.clear()

    def _intern(self, what: str, identity: Sequence[Any], row: Sequence[Any]) -> int:
        """The key of the row with this identity, inserted if it is new."""
        found = self._sql.fetch(f"find_{what}", identity)
        if found is not None:
            return int(found[0])
        # Fetching all rows is what completes an INSERT ... RETURNING.
        return int(self._sql.execute(f"insert_{what}", row).fetchall()[0][0])


def hash_contents(record: Record) -> Digests:
    """What a record's combination of contents is looked up by."""
    return (
        sha256(record.settings).digest(),
        None if record.instructions is None else sha256(record.instructions).digest(),
        None if record.tools is None else sha256(record.tools).digest(),
    )
