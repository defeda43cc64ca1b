"""What `vermilion llm` draws for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.options import bytes_for_people

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.checks import Finding
    from vermilion.llm.list_operators import OperatorList, Row
    from vermilion.llm.operators import Cost, Operator

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def ops_as_json(found: OperatorList) -> dict[str, object]:
    """Return the keys of `llm ops --json`."""
    return {
        "source": found.source,
        "read_from": found.read_from,
        "family": found.family,
        "layers": found.layers,
        "context_length": found.context,
        "prefill_tokens": found.prefill.tokens,
        "decode_context": found.decode.context,
        "activation_bytes": found.decode.activation_bytes,
        "operators": [_row_as_json(row, found.prefill.tokens) for row in found.rows],
        "totals": {
            "prefill_gops": sum(row.prefill.gops for row in found.rows),
            "prefill_bytes": sum(row.prefill.bytes for row in found.rows),
            "decode_gops": sum(row.decode.gops for row in found.rows),
            "decode_bytes": sum(row.decode.bytes for row in found.rows),
        },
        "missing": len(found.missing),
        "other_nodes": dict(found.other_nodes),
    }


def _row_as_json(row: Row, tokens: int) -> dict[str, object]:
    one = row.operator
    stored = one.weights
    weights = None
    if stored is not None:
        weights = {
            "bits": stored.bits,
            "block": stored.block,
            "symmetric": stored.is_symmetric,
            "scale_bytes": stored.scale_bytes,
        }
    return {
        "op_type": one.op_type,
        "roles": one.roles,
        "shape": dict(one.shape),
        "weights": weights,
        "count": one.count,
        "prefill": _cost_as_json(row.prefill, tokens),
        "decode": _cost_as_json(row.decode, 1),
        "known": row.verdict.is_known,
        "models": row.verdict.models,
        "reason": row.verdict.reason,
    }


def _cost_as_json(cost: Cost, tokens: int) -> dict[str, float]:
    return {
        "gops": cost.gops,
        "bytes": cost.bytes,
        "gops_per_token": cost.gops / tokens,
        "bytes_per_token": cost.bytes / tokens,
    }


def ops_view(found: OperatorList) -> RenderableType:
    """Draw the operators as a table, with the sums of both phases."""
    from rich.console import Group

    from vermilion.llm.operators import SOURCE

    columns = (
        Column("operator", 0, "name"), Column("shape", 0, "words"), Column("runs", 1),
        Column("prefill\nGOPs", 5), Column("prefill\nbytes", 6), Column("decode\nGOPs", 3),
        Column("decode\nbytes", 4), Column("known from", 2, "words"),
    )  # fmt: skip
    rows = []
    tokens = found.prefill.tokens
    for row in found.rows:
        one = row.operator
        cells = (
            "\n  ".join((one.op_type, *one.roles)),
            _shape(one),
            str(one.count),
            f"{row.prefill.gops / tokens:.4f}",
            bytes_for_people(row.prefill.bytes // tokens),
            f"{row.decode.gops:.4f}",
            bytes_for_people(row.decode.bytes),
            _known(row),
        )
        rows.append(cells)
    prefill_gops = sum(row.prefill.gops for row in found.rows)
    decode_gops = sum(row.decode.gops for row in found.rows)
    decode_bytes = sum(row.decode.bytes for row in found.rows)
    head = f"{found.source}: {found.family}, {found.layers} layers (read from {found.read_from})"
    cached = f"{found.decode.context:,} tokens in the cache"
    lines: list[RenderableType] = [
        head,
        FittedTable(columns, rows),
        f"prefill of {tokens:,} tokens: {prefill_gops:.1f} GOPs; decode with {cached}:"
        f" {decode_gops:.3f} GOPs and {bytes_for_people(decode_bytes)} a token",
        "(GOPs and bytes are of all runs, for one token)",
        f"{len(found.missing)} of {len(found.rows)} must be compiled: no model shipped for the NPU"
        " has them so",
        f"(those of {SOURCE})",
    ]
    if found.other_nodes:
        others = ", ".join(f"{count} {name}" for name, count in sorted(found.other_nodes.items()))
        lines.append(f"other nodes: {others}")
    return Group(*lines)


def _shape(one: Operator) -> str:
    stored = one.weights
    if stored is None:
        return one.shape_words()
    zero = "" if stored.is_symmetric else " +zero"
    return f"{one.shape_words()} int{stored.bits}/{stored.block}{zero}"


def _known(row: Row) -> str:
    if not row.verdict.is_known:
        return "compile: other blocks" if row.verdict.models else "compile"
    if not row.verdict.models:
        return row.verdict.reason
    first, *others = row.verdict.models
    return f"{first} and {len(others)} more" if others else first


def config_view(
    where: str, changed: Mapping[str, object], findings: Sequence[Finding]
) -> RenderableType:
    """Draw what was written, and what the check found."""
    from rich.console import Group
    from rich.text import Text

    views: list[RenderableType] = []
    for stage, options in changed.items():
        views += [f"written into {where}, {stage}:", Verbatim(json.dumps(options, indent=2))]
    if not findings:
        return Group(*views, f"{where}: nothing is wrong")
    views.append(f"{where}:")
    for one in findings:
        label = (f"{one.level}: ", _STYLES[one.level])
        views.append(Text.assemble(label, f"{one.what} [{one.id}]"))
        if one.fix:
            views.append(Text.assemble("  ", ("fix: ", "bold"), one.fix))
    return Group(*views)
