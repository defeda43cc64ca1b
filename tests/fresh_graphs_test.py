"""A hundred graphs and files in every run of the tests, new ones where that is asked for.

With VERMILION_FRESH_SEEDS=1 nobody has seen them before, and a failure is a fault to fix; without,
they are the same in every run, so that a change is judged by what it changed.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import Counter

import numpy as np
import pytest

from mutated_files.files import FAULTS, table, try_files
from random_graphs import tally
from random_graphs.batches import Case, try_all
from random_graphs.graph_writer import FORMATS, GraphWriter, IllegalError
from random_graphs.growth import ANY, BUILDERS, grow
from random_graphs.quantized import quantize_after
from random_graphs.shrinking import described
from vermilion.codegen.lower.rules import RULES

linux = pytest.mark.skipif(sys.platform != "linux", reason="this system has no guard pages")

# Twice as many are drawn as are tried: first those with an operator that none before them has. On
# two idle cores all of them fit into the time; on a busy machine some are tried anyhow.
DRAWN, GRAPHS, ANYHOW, SECONDS = 200, 100, 60, 75.0
OF_SCHEMAS, FILES = 40, 100


def first_seed(known: int) -> int:
    """Return the seed that is always the same, or one that was never seen."""
    return secrets.randbelow(10**9) if os.environ.get("VERMILION_FRESH_SEEDS") else known


def chosen(seed: int) -> list[Case]:
    """Return the graphs to try: every operator that was drawn is in one of the first."""
    seen: set[str] = set()
    first, others = list[Case](), list[Case]()
    for at in range(DRAWN):
        case = Case(seed + at, FORMATS[at % len(FORMATS)])
        model = grow(case.seed, case.number_format).model
        operators = {node.op_type for node in model.graph.node}
        (others if operators <= seen else first).append(case)
        seen |= operators
    return [*first, *others][:GRAPHS]


@linux
def test_fresh_graphs_are_right_and_stay_within_their_memory() -> None:
    seed = first_seed(7_000_190)
    cases = chosen(seed)
    until = time.monotonic() + SECONDS
    tried = try_all(cases, jobs=2, until=until, anyhow=ANYHOW)
    rows = tally.tally(tried)
    print(f"from seed {seed}\n{tally.table(rows)}")
    found = tally.faults(tried)
    assert not found, "\n\n".join(described(one, 30.0) for one in found[:3])
    assert len(tried) >= ANYHOW
    for name, row in rows.items():
        assert row.native_nodes >= 0.8 * row.nodes, f"{name}: much is not native: {row.reasons}"
        assert row.unjudged <= 0.1 * row.outputs, f"{name}: noise decides too much"


@linux
def test_graphs_of_any_operator_of_the_standard_are_right() -> None:
    """Most of what is in them nobody here generates; what is done around it has to be right too."""
    seed = first_seed(8_000_000)
    cases = [Case(seed + at, ANY) for at in range(OF_SCHEMAS)]
    tried = try_all(cases, jobs=2)
    print(f"from seed {seed}\n{tally.table(tally.tally(tried))}")
    found = tally.faults(tried)
    assert not found, "\n\n".join(described(one, 30.0) for one in found[:3])
    assert len({name for one in tried for name in one.grown}) >= 40


@linux
def test_fresh_files_run_or_end_in_an_error_in_words() -> None:
    seed = first_seed(9_000_000)
    found = try_files(range(seed, seed + FILES), jobs=2)
    print(f"from seed {seed}: {table(found)}")
    wrong = [one for one in found if one.kind in FAULTS]
    assert not wrong, "\n".join(
        f"{one.seed} ({one.changes}): {one.kind}: {one.detail}; {one.line}" for one in wrong
    )


def test_every_operator_that_is_generated_is_drawn() -> None:
    """A rule without a builder would never be tried."""
    drawn: Counter[str] = Counter()
    for name, (since, build) in BUILDERS.items():
        for seed in range(12):
            random = np.random.default_rng(seed)
            # Where old forms differ, both are drawn.
            writer = GraphWriter(random, max(since, (26, 22, 17)[seed % 3]), "fp32")
            writer.quantize_after = quantize_after if seed % 4 == 3 else None
            try:
                build(writer)
            except IllegalError:
                continue
            drawn.update(node.op_type for node in writer.nodes)
            if drawn[name]:
                break
        assert drawn, name
    never = set(RULES) - tally.NOT_IN_FILES - set(drawn)
    assert not never
