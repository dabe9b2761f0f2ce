"""Nodes of the one tree. A node knows its parent; nothing lists its children or its history.

Invariant: a node never changes its parent, and a node's items never change once recorded
(deletion blanks them).
"""

from typing import Literal, TypeAlias

import msgspec

NodeKind: TypeAlias = Literal["response", "items"]
Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

#: A failed or cancelled round can be read, but nothing continues from it.
CONTINUABLE: frozenset[Status] = frozenset({"completed", "incomplete"})


class Node(msgspec.Struct, kw_only=True):
    """One round as it stands in the tree: `input` and `output` are JSON arrays of item bytes."""

    id: str
    parent: str | None
    kind: NodeKind = "response"
    status: Status = "completed"
    input: bytes = b"[]"
    output: bytes = b"[]"
