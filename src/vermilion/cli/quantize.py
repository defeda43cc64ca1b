"""`vermilion quantize`: a float model and samples → a quantized model and its accuracy."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from vermilion.cli.options import Dims, Model, bytes_for_people, parse_dims, parse_shape
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.ir.pictures import Layout
    from vermilion.quantization import QuantizedFile
    from vermilion.quantize.guard import Guarded, Promise
    from vermilion.quantize.hold_out import Metric
    from vermilion.quantize.result import Quantized

_WORST_LAYERS = 8


@verb("quantize", limits_threads=True)
def quantize(
    terminal: Terminal,
    model: Model,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The ONNX file to write.", show_default=False)
    ],
    calib: Annotated[
        str,
        typer.Option(
            "--calib",
            metavar="DIR|FILE|random",
            help="Pictures, .npy or .npz files; `random` only to try things out.",
            show_default=False,
        ),
    ],
    scheme: Annotated[
        str | None, typer.Option("--scheme", help="The number format; `xint8` by default.")
    ] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", help="Samples to take at most.")] = 32,
    dim: Dims = None,
    mean: Annotated[
        str | None, typer.Option("--mean", help="Subtracted from pictures ÷ 255: `0.485,0.456,…`")
    ] = None,
    std: Annotated[
        str | None, typer.Option("--std", help="What pictures are divided by: `0.229,0.224,…`")
    ] = None,
    layout: Annotated[str, typer.Option("--layout", help="Order of axes: nchw or nhwc.")] = "nchw",
    resize: Annotated[
        str | None, typer.Option("--resize", help="Bring pictures to this size: `224x224`.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="Ranges of activations: mse, minmax, percentile, entropy."),
    ] = None,
    rounding: Annotated[
        str | None, typer.Option("--rounding", help="Of weights: compensated or nearest.")
    ] = None,
    per_channel: Annotated[
        bool | None,
        typer.Option("--per-channel/--per-tensor", help="Scales of weights.", show_default=False),
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric", help="Zero points of zero, as int8.")
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Weights that share a scale in 4-bit schemes.")
    ] = None,
    equalize: Annotated[
        bool | None, typer.Option("--equalize", help="Balance weights across layers first.")
    ] = None,
    migrate: Annotated[
        bool | None,
        typer.Option(
            "--migrate",
            help="Move outlying channels into the weights first: for transformers and gates.",
        ),
    ] = None,
    wide: Annotated[
        list[str] | None,
        typer.Option("--wide", help="Tensors that get 16 bits; `*` matches. May be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", help="Nodes that stay in float; `*` matches. May be repeated."),
    ] = None,
    max_drop: Annotated[
        str | None,
        typer.Option(
            "--max-drop",
            metavar="1%",
            help="Raise precision until samples held out show with 95 % confidence that no more "
            "than this is lost: of the metric, or of the decisions that agree with the float "
            "model's. Else exit 1, and how many samples would show it.",
        ),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option("--min-sqnr", metavar="DB", help="The same, for the SQNR of every output."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="MODULE:FUNCTION",
            help="For `--max-drop`: takes the outputs of all held-out samples, gives a figure.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="Take the options from a file.")
    ] = None,
    save_recipe: Annotated[
        Path | None,
        typer.Option("--save-recipe", metavar="FILE", help="Write the options that were taken."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with plots.")
    ] = None,
) -> Result:
    """Quantize a model, and say layer by layer what that costs in accuracy."""
    from vermilion.quantization import quantize_file
    from vermilion.quantize.options import Settings

    if calib == "random":
        terminal.warn("calibrating on random data: scales and accuracy mean nothing for real data")
    given = {
        "scheme": scheme,
        "method": method,
        "rounding": rounding,
        "per_channel": per_channel,
        "symmetric": symmetric,
        "block": block,
        "equalize": equalize,
        "migrate": migrate,
        "wide": wide,
        "exclude": exclude,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = cast(Settings, {**_read_recipe(recipe), **chosen})
    quantized = quantize_file(
        model,
        output,
        calib=calib,
        samples=samples,
        dims=parse_dims(dim),
        mean=_numbers(mean, "--mean", (0.0,)),
        std=_numbers(std, "--std", (1.0,)),
        layout=_layout(layout),
        resize=_size(resize),
        promise=_promise(max_drop, min_sqnr, metric),
        report=report,
        progress=terminal.progress,
        **settings,
    )
    if save_recipe is not None:
        text = json.dumps(quantized.quantized.options.as_json(), indent=2) + "\n"
        save_recipe.write_text(text, encoding="utf-8")
    return Result(quantized.as_json(), lambda: _view(quantized), ok=quantized.met)


def _read_recipe(file: Path | None) -> dict[str, object]:
    from vermilion.quantize.options import from_json

    if file is None:
        return {}
    try:
        recipe = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise OptionError("there is no such recipe", where=str(file)) from error
    except ValueError as error:
        raise OptionError(f"the recipe is not JSON: {error}", where=str(file)) from error
    if not isinstance(recipe, dict):
        raise OptionError("the recipe is not a JSON object", where=str(file))
    return from_json(recipe).as_json()


def _promise(max_drop: str | None, min_sqnr: float | None, metric: str | None) -> Promise | None:
    from vermilion.quantize.guard import Promise

    if max_drop is None and min_sqnr is None:
        if metric is not None:
            raise OptionError("`--metric` needs `--max-drop`", hint="add `--max-drop 1%`")
        return None
    if max_drop is None and metric is not None:
        raise OptionError("`--metric` goes with `--max-drop`, not with `--min-sqnr`")
    drop = None if max_drop is None else _part(max_drop)
    return Promise(drop, min_sqnr, None if metric is None else _metric(metric))


def _part(text: str) -> float:
    """Read `1%` or `0.01`."""
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError as error:
        raise OptionError(f"`--max-drop {text}` is not a part", hint="write `1%`") from error


def _metric(words: str) -> Metric:
    """Import what `module:function` names; the working folder is searched as well."""
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise OptionError(f"`--metric {words}` is not MODULE:FUNCTION")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"`--metric {words}` cannot be imported: {error}") from error
    finally:
        sys.path.remove(folder)
    if not callable(found):
        raise OptionError(f"`--metric {words}` is not a function")
    return cast("Metric", found)


def _numbers(text: str | None, option: str, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"`{option} {text}` is not a list of numbers", hint="write `0.485,0.456,0.406`"
        ) from error


def _layout(text: str) -> Layout:
    if text == "nchw":
        return "nchw"
    if text == "nhwc":
        return "nhwc"
    raise OptionError(f"unknown layout `{text}`", hint="it is `nchw` or `nhwc`")


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sizes = parse_shape(text, where="--resize")
    if len(sizes) != 2:
        raise OptionError(f"`--resize {text}` is not HEIGHTxWIDTH", hint="write `224x224`")
    return sizes[0], sizes[1]


def _view(file: QuantizedFile) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    found = file.quantized
    size = bytes_for_people(file.output.stat().st_size)
    outputs = Table(box=None, pad_edge=False, header_style="bold")
    outputs.add_column("output")
    outputs.add_column("SQNR dB", justify="right")
    outputs.add_column("cosine", justify="right")
    for row in found.outputs:
        outputs.add_row(row.name, f"{row.sqnr_db:.1f}", f"{row.cosine:.6f}")
    worst = sorted(found.layers, key=lambda layer: layer.sqnr_db)[:_WORST_LAYERS]
    layers = Table(box=None, pad_edge=False, header_style="bold")
    layers.add_column("layer", overflow="fold")
    layers.add_column("operator")
    layers.add_column("SQNR dB", justify="right")
    for layer in worst:
        layers.add_row(layer.name, layer.op_type, f"{layer.sqnr_db:.1f}")
    own = f", {found.own_samples} of them in own kernels" if found.own_samples else ""
    return Group(
        f"{file.output} ({size}): {found.scheme}, {found.samples} "
        f"{'sample' if found.samples == 1 else 'samples'}{own}, "
        f"{file.seconds:.1f} s, peak memory {file.peak_rss_mb:.0f} MB",
        "",
        "against the float model, on calibration samples",
        outputs,
        "",
        f"the {len(worst)} layers furthest from float, of {len(found.layers)}",
        layers,
        *_crowded(found),
        *_ladder(file),
    )


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
    from rich.table import Table

    if file.guarded is None:
        return []
    guarded = file.guarded
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"tried, on {guarded.held_out} samples held out")
    for heading in ("SQNR dB", "drop", "at most", "GOPs on 8 bits", "s"):
        table.add_column(heading, justify="right")
    for trial in guarded.ladder:
        table.add_row(
            trial.what,
            f"{trial.sqnr_db:.1f}",
            f"{trial.drop:.2%}",
            f"{trial.bound:.2%}",
            f"{trial.eight_bit_share:.1%}",
            f"{trial.seconds:.1f}",
        )
    note = "`at most` is what the drop does not exceed with 95 % confidence"
    return ["", table, note, *_verdict(guarded)]


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
