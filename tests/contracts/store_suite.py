"""The suite that every store passes: how a scenario is run on each implementation, and what it is made of."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from antiphon.sessions import Node
from antiphon.store import Conversation, Job, Record, Store
from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite import SqliteStore

Scenario: TypeAlias = Callable[[Store], Awaitable[None]]
Run: TypeAlias = Callable[[Scenario], None]

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _folder: MemoryStore(),
    "sqlite": SqliteStore.open,
}


def make_run(name: str, folder: Path) -> Run:
    """What runs one scenario on a fresh store of this implementation, and closes it."""

    def run_scenario(scenario: Scenario) -> None:
        async def whole() -> None:
            store = STORES[name](folder / "data")
            try:
                async with asyncio.timeout(30):
                    await scenario(store)
            finally:
                await store.close()

        asyncio.run(whole())

    return run_scenario


def make_id(number: int) -> str:
    """An id of the usual shape."""
    return f"resp_{number:036x}"


def make_record(number: int, parent: int | None = None, tenant: str = "a", **fields: Any) -> Record:
    """A round whose items name its number."""
    record = Record(
        id=make_id(number),
        parent=None if parent is None else make_id(parent),
        tenant=tenant,
        created_at=1_790_000_000 + number,
        input=b'[{"role":"user","content":"q%d"}]' % number,
        output=b'[{"type":"message","content":"a%d"}]' % number,
    )
    return msgspec.structs.replace(record, **fields)


def make_conversation(number: int, tenant: str = "a", **fields: Any) -> Conversation:
    """An empty conversation without metadata."""
    conversation = Conversation(id=f"conv_{number}", tenant=tenant, created_at=1_790_000_000 + number)
    return msgspec.structs.replace(conversation, **fields)


def make_job(number: int, tenant: str = "a", **fields: Any) -> Job:
    """A background response that waits for its turn."""
    job = Job(
        id=make_id(number),
        tenant=tenant,
        created_at=1_790_000_000 + number,
        request=b'{"input":"q%d"}' % number,
        snapshot=b'{"status":"queued","n":%d}' % number,
    )
    return msgspec.structs.replace(job, **fields)


def to_node(record: Record) -> Node:
    """The part of a record that a path gives."""
    return Node(
        id=record.id,
        parent=record.parent,
        kind=record.kind,
        status=record.status,
        input=record.input,
        output=record.output,
    )
