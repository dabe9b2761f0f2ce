"""Windows in memory: shared along a chain, apart on branches, bounded, dead after a deletion."""

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.windows import (
    DELETIONS_REMEMBERED,
    ENTRY_OVERHEAD_BYTES,
    Step,
    Window,
    WindowCache,
    extend,
    start_window,
)

TENANT = "t"


def step(name: str, *calls: str, pieces: int = 1) -> Step:
    """A step whose bytes name it."""
    return Step(
        node_id=name,
        pieces=tuple(f"{name}.{number}".encode() for number in range(pieces)),
        calls=calls,
        item_ids=(f"msg_{name}",),
        open_calls=dict.fromkeys(calls, "f"),
    )


def grow(window: Window, *names: str) -> Window:
    """A window some steps further."""
    for name in names:
        window = extend(window, step(name))
    return window


def test_a_chain_shares_one_strand() -> None:
    """Module docstring: the next round of a chain appends to its strand."""
    root = start_window("k")
    first = grow(root, "a")
    second = grow(first, "b")
    assert first.strand is second.strand is root.strand
    assert first.pieces == [b"a.0"]
    assert second.pieces == [b"a.0", b"b.0"]
    assert root.pieces == []


def test_branches_do_not_see_each_other() -> None:
    """Decision, the window: a branch starts a new strand with the same pieces."""
    first = grow(start_window("k"), "a")
    left = extend(first, step("l", "call_l"))
    right = extend(first, step("r", "call_r"))
    assert left.pieces == [b"a.0", b"l.0"]
    assert right.pieces == [b"a.0", b"r.0"]
    assert left.has_call("call_l")
    assert not left.has_call("call_r")
    assert not right.has_call("call_l")
    assert not first.has_call("call_l")
    assert right.open_calls == {"call_r": "f"}
    assert right.has_item("msg_a")
    assert not right.has_item("msg_l")
    assert not first.has_item("msg_l")


def test_a_step_without_bytes_still_makes_a_branch() -> None:
    """Ours: positions are node counts, not byte counts."""
    first = grow(start_window("k"), "a")
    empty = extend(first, step("e", "call_e", pieces=0))
    other = extend(first, step("o"))
    assert empty.pieces == [b"a.0"]
    assert other.pieces == [b"a.0", b"o.0"]
    assert not other.has_call("call_e")


def test_an_item_of_ours_is_known_by_its_node() -> None:
    """Decided: an item id is derived from node id and position."""
    window = grow(start_window("k"), "0" * 36)
    assert window.has_item("msg_" + "0" * 36 + "0001")
    assert not window.has_item("msg_" + "1" * 36 + "0001")


def test_a_cached_window_belongs_to_tenant_node_and_key() -> None:
    """Decision, state: a tenant sees its own data alone; another profile makes other bytes."""
    cache = WindowCache(1 << 20)
    cache.put(TENANT, "resp_a", grow(start_window("k"), "a"), since_deletion=0)
    assert cache.get(TENANT, "resp_a", "k") is not None
    assert cache.get("other", "resp_a", "k") is None
    assert cache.get(TENANT, "resp_a", "other") is None
    assert cache.get(TENANT, "resp_b", "k") is None


def test_the_least_recently_used_strand_leaves_first_and_the_size_is_bounded() -> None:
    """Ours: memory bounded by a stated cache size."""
    one = ENTRY_OVERHEAD_BYTES + 3
    cache = WindowCache(2 * one)
    for name in ("a", "b"):
        cache.put(TENANT, f"resp_{name}", grow(start_window("k"), name), since_deletion=0)
    assert cache.get(TENANT, "resp_a", "k") is not None
    cache.put(TENANT, "resp_c", grow(start_window("k"), "c"), since_deletion=0)
    assert cache.get(TENANT, "resp_b", "k") is None
    assert cache.get(TENANT, "resp_a", "k") is not None
    assert cache.size_bytes <= 2 * one


def test_nothing_is_cached_when_the_limit_is_zero() -> None:
    """Configuration: 0 caches none."""
    cache = WindowCache(0)
    cache.put(TENANT, "resp_a", grow(start_window("k"), "a"), since_deletion=0)
    assert cache.get(TENANT, "resp_a", "k") is None
    assert cache.size_bytes == 0


def test_a_deleted_node_takes_every_window_through_it() -> None:
    """Decided: descendants' cached windows are invalidated."""
    cache = WindowCache(1 << 20)
    first = grow(start_window("k"), "a")
    tip = grow(first, "b")
    branch = grow(first, "c")
    other = grow(start_window("k"), "d")
    for name, window in (("a", first), ("b", tip), ("c", branch), ("d", other)):
        cache.put(TENANT, f"resp_{name}", window, since_deletion=0)
    cache.forget_node("resp_a")
    assert [cache.get(TENANT, f"resp_{name}", "k") is None for name in "abcd"] == [True, True, True, False]


def test_a_window_that_was_out_during_a_deletion_is_not_kept() -> None:
    """Decided: a window whose path was deleted while its answer was made must not come back."""
    cache = WindowCache(1 << 20)
    noted = cache.deletion_count
    window = grow(start_window("k"), "a")
    cache.forget_node("resp_a")
    cache.put(TENANT, "resp_b", grow(window, "b"), since_deletion=noted)
    assert cache.get(TENANT, "resp_b", "k") is None
    cache.put(TENANT, "resp_c", grow(start_window("k"), "c"), since_deletion=noted)
    assert cache.get(TENANT, "resp_c", "k") is not None


def test_a_window_from_before_all_remembered_deletions_is_not_kept() -> None:
    """Constant DELETIONS_REMEMBERED: nobody remembers whether they touched its path."""
    cache = WindowCache(1 << 20)
    for number in range(DELETIONS_REMEMBERED + 1):
        cache.forget_node(f"resp_x{number}")
    cache.put(TENANT, "resp_a", grow(start_window("k"), "a"), since_deletion=0)
    assert cache.get(TENANT, "resp_a", "k") is None


#: (what, which): extend an existing node, read one, delete one.
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["extend", "extend", "extend", "read", "delete"]), st.integers(0, 30)),
    max_size=40,
)


@given(ACTIONS, st.sampled_from([0, 2_500, 6_000, 1 << 20]))
def test_any_tree_in_any_cache_gives_only_true_windows(actions: list[tuple[str, int]], limit: int) -> None:
    """Invariants: a window holds exactly its path; a strand through a deleted node is never used again."""
    cache = WindowCache(limit)
    parents: dict[str, str | None] = {}
    deleted: set[str] = set()

    def path(node: str) -> list[str]:
        names = []
        at: str | None = node
        while at is not None:
            names.append(at)
            at = parents[at]
        return names[::-1]

    def find(node: str) -> Window:
        """As the engine does: the cached window, else one made anew and kept."""
        window = cache.get(TENANT, f"resp_{node}", "k")
        if window is None:
            noted = cache.deletion_count
            window = grow(start_window("k"), *path(node))
            cache.put(TENANT, f"resp_{node}", window, since_deletion=noted)
        return window

    for what, which in actions:
        nodes = list(parents)
        node = nodes[which % len(nodes)] if nodes and which < 25 else None
        dead = node is not None and bool(deleted.intersection(path(node)))
        if what == "delete" and node is not None:
            deleted.add(node)
            cache.forget_node(f"resp_{node}")
        elif what == "read" and node is not None:
            cached = cache.get(TENANT, f"resp_{node}", "k")
            assert cached is None or not dead
            assert cached is None or cached.pieces == [f"{name}.0".encode() for name in path(node)]
        elif what == "extend" and not dead:
            noted = cache.deletion_count
            window = find(node) if node is not None else start_window("k")
            name = f"n{len(parents)}"
            parents[name] = node
            cache.put(TENANT, f"resp_{name}", extend(window, step(name)), since_deletion=noted)
        assert cache.size_bytes <= limit
