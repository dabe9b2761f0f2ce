"""The tree: nodes, the path from the root to a node, and what may continue from where.

Pure: no I/O, no clock, no randomness.
"""

from antiphon.sessions.tree import CONTINUABLE, Node, NodeKind, Status

__all__ = ["CONTINUABLE", "Node", "NodeKind", "Status"]
