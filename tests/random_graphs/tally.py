"""The table of a run: by number format how many graphs, how much was native, what was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from random_graphs.batches import Tried
from random_graphs.trial import FAULTS


@dataclass
class Row:
    """What became of the graphs of one number format."""

    graphs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    nodes: int = 0
    native_nodes: int = 0
    outputs: int = 0
    unjudged: int = 0
    peers: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    grown: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)


def tally(tried: Iterable[Tried]) -> dict[str, Row]:
    """Return a row for each number format."""
    rows: dict[str, Row] = {}
    for one in tried:
        row = rows.setdefault(one.case.number_format, Row())
        outcome = one.outcome
        row.graphs += 1
        row.kinds[outcome.kind] += 1
        row.nodes += outcome.nodes
        row.native_nodes += outcome.native_nodes
        row.outputs += outcome.outputs
        row.unjudged += outcome.unjudged
        row.peers += outcome.peers
        row.reasons.update(reason for _, reason in outcome.refused)
        if outcome.kind in ("refused", "not run"):
            row.reasons[outcome.detail[:100]] += 1
        row.grown.update(one.grown)
        row.native.update(outcome.native_operators)
    return rows


def faults(tried: Iterable[Tried]) -> list[Tried]:
    """Return the graphs in which something is wrong."""
    return [one for one in tried if one.outcome.kind in FAULTS]


_COLUMNS = ("graphs", "nodes", "native", "refused", "not run", "unjudged", "peer off", *FAULTS)


def table(rows: Mapping[str, Row]) -> str:
    """Return the table as text."""
    lines = ["".join(f"{head:>12}" for head in ("format", *_COLUMNS))]
    for name, row in rows.items():
        share = f"{100 * row.native_nodes / row.nodes:.1f}%" if row.nodes else "-"
        loose = f"{100 * row.unjudged / row.outputs:.1f}%" if row.outputs else "-"
        cells: Sequence[object] = (
            name, row.graphs, row.nodes, share, row.kinds["refused"], row.kinds["not run"], loose,
            row.peers,
            *(row.kinds[kind] for kind in FAULTS),
        )  # fmt: skip
        lines.append("".join(f"{cell!s:>12}" for cell in cells))
    return "\n".join(lines)


# Of our own domain: no ONNX file has it, models of number formats are given it.
NOT_IN_FILES = frozenset({"RoundToBlocks"})


def coverage(rows: Mapping[str, Row], claimed: Iterable[str]) -> str:
    """Return operators × formats: how often each was generated as native code."""
    names = list(rows)
    lines = [f"{'operator':<24}" + "".join(f"{name:>12}" for name in names)]
    lines += [
        f"{operator:<24}" + "".join(f"{rows[name].native[operator]:>12}" for name in names)
        for operator in sorted(claimed)
    ]
    return "\n".join(lines)
