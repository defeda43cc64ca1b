"""What `vermilion quantize` shows people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.options import bytes_for_people

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.quantization import QuantizedFile
    from vermilion.quantize.guard import Guarded
    from vermilion.quantize.result import Quantized

_WORST_LAYERS = 8


def view(file: QuantizedFile) -> RenderableType:
    """Show what was written, what it lost, and where."""
    from rich.console import Group

    found = file.quantized
    size = bytes_for_people(file.output.stat().st_size)
    outputs = FittedTable(
        (Column("output", 0, "name"), Column("SQNR dB"), Column("cosine", 1)),
        [(row.name, f"{row.sqnr_db:.1f}", f"{row.cosine:.6f}") for row in found.outputs],
    )
    worst = sorted(found.layers, key=lambda layer: layer.sqnr_db)[:_WORST_LAYERS]
    layers = FittedTable(
        (Column("layer", 0, "name"), Column("operator", 1, "name"), Column("SQNR dB")),
        [(layer.name, layer.op_type, f"{layer.sqnr_db:.1f}") for layer in worst],
    )
    own = f", {found.own_samples} of them in own kernels" if found.own_samples else ""
    return Group(
        Verbatim(f"{file.output}: {size}"),
        f"{found.scheme}, {found.samples} "
        f"{'sample' if found.samples == 1 else 'samples'}{own}, "
        f"{file.seconds:.1f} s, peak memory {file.peak_rss_mb:.0f} MB",
        "",
        f"against the float model, on {_compared_on(found)}",
        outputs,
        "",
        f"the {len(worst)} layers furthest from float, of {len(found.layers)}",
        layers,
        *_crowded(found),
        *_inner(found),
        *_ladder(file),
        *_front(file),
    )


def _compared_on(found: Quantized) -> str:
    if not found.held_out:
        return "calibration samples: others may be further from it"
    return "1 sample held out" if found.held_out == 1 else f"{found.held_out} samples held out"


def _inner(found: Quantized) -> list[str]:
    """Name recurrent layers, and what computes in float in branches and bodies."""
    by_outer: dict[str, list[str]] = {}
    for row in found.inner:
        if row.has_activations:
            continue
        weights = ", weights in 8 bits" if row.has_weights else ""
        by_outer.setdefault(row.outer, []).append(f"`{row.name}` ({row.op_type}{weights})")
    lines = []
    for outer, names in by_outer.items():
        shown = ", ".join(names[:_WORST_LAYERS])
        more = f" and {len(names) - _WORST_LAYERS} more" if len(names) > _WORST_LAYERS else ""
        where = f"inside `{outer}`" if outer else "recurrent"
        lines.append(f"activations in float, {where}: {shown}{more}")
    return ["", *lines] if lines else []


def _crowded(found: Quantized) -> list[str]:
    """Say which tensors have lost nearly all, and how to keep them."""
    lines = []
    for row in found.crowded:
        kept = "1 step" if row.steps == 1 else f"{row.steps} steps"
        lines.append(
            f"`{row.tensor}` keeps {kept}: "
            f"`{row.node}` joins it with much larger values, in one scale"
        )
    if lines:
        nodes = dict.fromkeys(row.node for row in found.crowded)
        options = " ".join(f"--exclude '{node}'" for node in nodes)
        lines.append(f"hint: leave that in float, so that each has a scale of its own: {options}")
    return ["", *lines] if lines else []


def _ladder(file: QuantizedFile) -> list[RenderableType]:
    if file.guarded is None:
        return []
    guarded = file.guarded
    columns = (
        Column(f"tried, on {guarded.held_out} samples held out", 0, "words"), Column("SQNR dB", 2),
        Column("drop", 0), Column("at most", 1), Column("GOPs on 8 bits", 3), Column("s", 4),
    )  # fmt: skip
    rows = [
        (
            trial.what,
            f"{trial.sqnr_db:.1f}",
            trial.fault or f"{trial.drop:.2%}",
            "" if trial.fault else _bound(trial.bound),
            f"{trial.eight_bit_share:.1%}",
            f"{trial.seconds:.1f}",
        )
        for trial in guarded.ladder
    ]
    counted = f" of `{guarded.metric}`" if guarded.metric else ""
    note = f"`at most` is what the drop{counted} does not exceed: all lines with 95 % confidence"
    return ["", FittedTable(columns, rows), note, *_verdict(guarded)]


def _front(file: QuantizedFile) -> list[RenderableType]:
    front = file.front
    if front is None:
        return []
    tried = f"{len(front.points)} of {front.tried} tried, on {front.held_out} held out"
    columns = [Column("point"), Column(tried, 0, "words"), Column("SQNR dB", 1)]
    columns += [Column("drop", 0)] if front.metric else []
    columns += [Column("GOPs on 8 bits", 3), Column("cost", 2)]
    rows = []
    for number, point in enumerate(front.points):
        drop = (f"{point.drop:.2%}",) if front.metric else ()
        share = f"{point.eight_bit_share:.1%}"
        row = (f"{point.sqnr_db:.1f}", *drop, share, f"{point.cost:.2f}")
        rows.append((str(number), point.what, *row))
    note = "cost is modelled: 1 where all products are of 8 bits; point 0 was saved"
    return [
        "",
        FittedTable(columns, rows),
        note,
        "hint: `--recipe FRONT.json --point N` makes another one",
    ]


def _bound(bound: float) -> str:
    return f"{bound:.2%}" if bound < 10.0 else "not known" if bound == float("inf") else "over 999%"


def _verdict(guarded: Guarded) -> list[str]:
    """Say whether the promise is kept, and what would help where it is not."""
    if guarded.met:
        return ["the promise is kept"]
    enough = min(
        (trial.samples_needed for trial in guarded.ladder if trial.samples_needed), default=0
    )
    lines = ["the promise is not kept; the best was saved"]
    if enough:
        lines.append(f"hint: {enough} samples that lose alike would show it: `--samples {enough}`")
    if guarded.has_doubtful_metric:
        lines.append(
            "hint: it was compared which class or channel is largest, which means little "
            "for boxes or masks: give `--metric MODULE:FUNCTION`, or promise `--min-sqnr`"
        )
    return lines
