from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import RenderableType

import bundles
from vermilion.cli.output import console_on
from vermilion.cli.placement import nodes_view, summary_view
from vermilion.runtime.summary import Fallback


def drawn(*views: RenderableType) -> str:
    out = io.StringIO()
    for view in views:
        console_on(out).print(view)
    return " ".join(out.getvalue().split())


def row(name: str, device: str, reason: str = "", hint: str = "") -> dict[str, object]:
    return {
        "name": name,
        "op_type": "Relu",
        "device": device,
        "part": f"{device}_par_0",
        "reason": reason,
        "hint": hint,
    }


def nodes(rows: Sequence[dict[str, object]], *, every_node: bool = False) -> str:
    return drawn(*nodes_view(rows, "npu", every_node=every_node))


def test_supported_offloaded_and_ran_are_three_columns() -> None:
    text = drawn(summary_view(bundles.small_summary(), ran="not compiled"))
    assert text.startswith("model supported offloaded ran operators 3 3 (100.0%) 2 (66.7%) not")
    assert "regions 1 1" in text
    assert "failed to compile" not in text


def test_regions_that_were_lost_have_their_cause() -> None:
    summary = replace(bundles.small_summary(), fallback=Fallback(1, 2, 3))
    text = drawn(summary_view(summary, ran="CPU"))
    assert "-1 failed to compile" in text
    assert "-2 below 20% of GOPs" in text
    assert "-3 above 7 regions" in text


def test_a_model_without_work_divides_by_nothing() -> None:
    empty = replace(
        bundles.small_summary(), gops=0.0, supported_gops=0.0, offloaded_gops=0.0, operators=0
    )
    assert "0 (0.0%)" in drawn(summary_view(empty, ran="CPU"))


def test_nodes_with_one_reason_are_one_line() -> None:
    rows = [row(f"n{at}", "cpu", "too small", "merge it") for at in range(3)]
    rows += [row("odd", "cpu", "unknown", "replace it"), row("fine", "npu")]
    text = nodes(rows)
    assert "3 too small merge it" in text
    assert "1 unknown replace it" in text
    assert "fine" not in text
    assert text.index("too small") < text.index("unknown"), "the commonest first"


def test_many_reasons_are_cut_and_counted() -> None:
    text = nodes([row(f"n{at}", "cpu", f"reason {at}", "hint") for at in range(20)])
    assert "8 8 more reasons see `--nodes`" in text
    assert "reason 11" in text
    assert "reason 12" not in text


def test_every_node_where_it_is_asked_for() -> None:
    text = nodes([row("a", "cpu", "why"), row("b", "npu")], every_node=True)
    assert "a Relu cpu cpu_par_0 why" in text
    assert "b Relu npu npu_par_0" in text


def test_nothing_stays_behind() -> None:
    assert nodes([row("a", "npu")]) == "every node is placed on the NPU"


def test_brackets_in_names_are_no_style() -> None:
    assert "[red]x[/red]" in nodes([row("[red]x[/red]", "cpu", "why")], every_node=True)
