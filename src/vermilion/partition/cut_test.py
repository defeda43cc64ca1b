"""Cutting: parts are connected, never wait on themselves, and everything is ordered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vermilion.partition.cut import connected_parts, schedule


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[set[int]], list[bool]]:
    size = draw(st.integers(1, 24))
    reads = [
        draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        for node in range(size)
    ]
    supported = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return reads, supported


def reachable(reads: list[set[int]], start: set[int]) -> set[int]:
    """Return every node that depends on one of `start`."""
    found = set(start)
    for node, sources in enumerate(reads):
        if sources & found:
            found.add(node)
    return found


@given(graphs())
@settings(max_examples=400, deadline=None)
def test_parts_cover_connect_and_never_wait_on_each_other(
    graph: tuple[list[set[int]], list[bool]],
) -> None:
    reads, supported = graph
    parts = connected_parts(reads, supported)
    covered = sorted(node for part in parts for node in part)
    assert covered == [node for node, is_supported in enumerate(supported) if is_supported]
    for part in parts:
        members = set(part)
        grown = {part[0]}
        while True:
            more = {
                n
                for n in members
                if n in grown or reads[n] & grown or any(n in reads[g] for g in grown)
            }
            if more == grown:
                break
            grown = more
        assert grown == members, "a part is not connected"
    done: set[int] = set()
    for step in schedule(reads, parts):  # asserts by itself that nothing waits in a circle
        for node in step.nodes:
            assert reads[node] <= done | set(step.nodes)
        done |= set(step.nodes)
    assert done == set(range(len(reads)))


def test_a_chain_is_one_part() -> None:
    assert connected_parts([set(), {0}, {1}], [True] * 3) == [[0, 1, 2]]


def test_a_part_does_not_wait_on_itself_through_an_unsupported_node() -> None:
    # 0 → 1 → 2 and 0 → 2, with 1 on the CPU: 0 and 2 must not be one part.
    assert connected_parts([set(), {0}, {0, 1}], [True, False, True]) == [[0], [2]]


def test_parts_do_not_wait_on_each_other() -> None:
    # Two chains a: 0→3, b: 1→4 that cross through CPU nodes: 0→2(cpu)→4 and 1→5(cpu)→… 3 reads 5.
    reads: list[set[int]] = [set(), set(), {0}, {1}, {0, 3}, {1, 2}]
    parts = connected_parts(reads, [True, True, False, False, True, True])
    schedule(reads, parts)
    assert sorted(map(tuple, parts)) == [(0, 4), (1,), (5,)]


def test_a_diamond_of_supported_nodes_is_one_part() -> None:
    assert connected_parts([set(), {0}, {0}, {1, 2}], [True] * 4) == [[0, 1, 2, 3]]


def test_separate_branches_stay_separate() -> None:
    assert connected_parts([set(), {0}, set(), {2}], [True] * 4) == [[0, 1], [2, 3]]


def test_cpu_nodes_are_gathered_around_a_device_part() -> None:
    # cpu 0, part (1), cpu 2 and 3 after it, cpu 4 free: it joins the first group.
    steps = schedule([set(), {0}, {1}, {2}, set()], [[1]])
    assert [(s.part, s.nodes) for s in steps] == [(None, (0, 4)), (0, (1,)), (None, (2, 3))]


def test_parts_in_a_circle_are_refused() -> None:
    with pytest.raises(AssertionError, match="wait on each other"):
        schedule([set(), {0}, {1}], [[0, 2]])


def test_long_chains_with_side_branches_are_cut_in_reasonable_time() -> None:
    size = 4000
    reads = [{max(0, n - 1), max(0, n - 7)} - {n} for n in range(size)]
    supported = [n % 50 != 0 for n in range(size)]
    parts = connected_parts(reads, supported)
    assert sum(map(len, parts)) == sum(supported)
    schedule(reads, parts)
