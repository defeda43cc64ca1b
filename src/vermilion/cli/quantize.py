"""`vermilion quantize`: a float model and samples → a quantized model and its accuracy."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from vermilion.cli.options import Dims, Mean, Model, ResizeTo, Std, parse_dims, parse_shape
from vermilion.cli.output import Failure, Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import write_file

if TYPE_CHECKING:
    from vermilion.ir.pictures import Layout
    from vermilion.quantize.guard import Promise


@verb("quantize", limits_threads=True)
def quantize(
    terminal: Terminal,
    model: Model,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.onnx",
            help="The ONNX file to write.",
            show_default=False,
        ),
    ],
    calib: Annotated[
        str,
        typer.Option(
            "--calib",
            metavar="DIR|FILE|random",
            help="Images, .npy or .npz files; `random` only to try things out.",
            show_default=False,
        ),
    ],
    scheme: Annotated[
        str | None,
        typer.Option("--scheme", metavar="SCHEME", help="The data types; xint8 if none."),
    ] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", help="Samples to take at most.")] = 32,
    dim: Dims = None,
    mean: Mean = None,
    std: Std = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", metavar="nchw|nhwc", help="Order of axes; nchw if none."),
    ] = None,
    resize: ResizeTo = None,
    preprocess: Annotated[
        Path | None,
        typer.Option(
            "--preprocess",
            metavar="FILE|DIR",
            help="How images are cropped, scaled and ordered: a JSON file, or the "
            "configuration of transformers or timm.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="mse|minmax|percentile|entropy",
            help="How ranges of activations are chosen.",
        ),
    ] = None,
    rounding: Annotated[
        str | None, typer.Option("--rounding", metavar="compensated|nearest", help="Of weights.")
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
        typer.Option(
            "--wide", metavar="NAME", help="Tensors that get 16 bits; `*` matches. May be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="NODE",
            help="Nodes that stay in float; `*` matches. May be repeated.",
        ),
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
            metavar="METRIC|MODULE:FUNCTION",
            help="What `--max-drop` is a part of: top1, top5, miou, map, cer, wer, f1, perplexity, "
            "cosine, or a function of (outputs, sample, index, label) or of those of all.",
        ),
    ] = None,
    pareto: Annotated[
        Path | None,
        typer.Option(
            "--pareto",
            metavar="FRONT.json",
            help="Search formats node by node and write the Pareto front: models that no other one "
            "beats in both cost and accuracy. Pick from it with `--recipe FRONT.json --point N`.",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="How long to search.")] = 5.0,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="For the metric: .csv, .txt, .npy or .npz, or a folder whose folders are classes.",
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            "--direction",
            metavar="larger|smaller",
            help="Which of the metric's figures are better.",
        ),
    ] = None,
    metric_range: Annotated[
        str | None,
        typer.Option("--metric-range", metavar="0:1", help="What its figures cannot pass."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            metavar="FILE",
            help="Take the options from a file: a saved recipe, a point of a Pareto front, or a "
            "configuration of AMD Quark or Olive.",
        ),
    ] = None,
    point: Annotated[
        int | None, typer.Option("--point", help="Of a recipe that is a Pareto front, this point.")
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
    from vermilion.cli.quantize_views import view
    from vermilion.quantization import quantize_file
    from vermilion.quantize.options import Settings

    if pareto is not None and (max_drop is not None or min_sqnr is not None):
        raise OptionError(
            "`--pareto` goes with no promise",
            hint="pick a point that keeps it from the Pareto front",
        )
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
    settings = cast(Settings, {**_read_recipe(recipe, point, terminal), **chosen})
    quantized = quantize_file(
        model,
        output,
        calib=calib,
        samples=samples,
        dims=parse_dims(dim),
        mean=_numbers(mean, "--mean"),
        std=_numbers(std, "--std"),
        layout=None if layout is None else _layout(layout),
        resize=_size(resize),
        preprocess=preprocess,
        promise=_promise(
            "0" if pareto is not None and (metric or labels) else max_drop,
            min_sqnr,
            metric,
            labels,
            direction,
            metric_range,
        ),
        pareto=pareto,
        minutes=minutes,
        labels=labels,
        report=report,
        progress=terminal.progress,
        **settings,
    )
    if save_recipe is not None:
        text = json.dumps(quantized.quantized.options.as_json(), indent=2) + "\n"
        write_file(save_recipe, text)
    failure = None
    if not quantized.met:
        failure = Failure(
            "the promise is not kept: no precision that was tried is close enough",
            where=str(model),
            hint="allow a larger loss, give more samples, or begin with a wider `--scheme`",
        )
    return Result(quantized.as_json(), lambda: view(quantized), ok=quantized.met, failure=failure)


def _read_recipe(file: Path | None, point: int | None, terminal: Terminal) -> dict[str, object]:
    from vermilion.quantize.recipes import read_recipe

    if file is None:
        if point is not None:
            raise OptionError(
                "`--point` needs a Pareto front", hint="give it with `--recipe FRONT.json`"
            )
        return {}
    found = read_recipe(file, point)
    for note in found.notes:
        terminal.warn(f"{file.name}: {note}")
    return dict(found.settings)


def _promise(
    max_drop: str | None,
    min_sqnr: float | None,
    metric: str | None,
    labels: str | None,
    direction: str | None,
    metric_range: str | None,
) -> Promise | None:
    from vermilion.quantize.guard import Promise

    given = {
        "--metric": metric,
        "--labels": labels,
        "--direction": direction,
        "--metric-range": metric_range,
    }
    for option, value in given.items() if max_drop is None else ():
        if value is not None and min_sqnr is None:
            raise OptionError(f"`{option}` needs `--max-drop`", hint="add `--max-drop 1%`")
        if value is not None:
            raise OptionError(f"`{option}` goes with `--max-drop`, not with `--min-sqnr`")
    if max_drop is None and min_sqnr is None:
        return None
    drop = None if max_drop is None else _part(max_drop)
    return Promise(
        drop,
        min_sqnr,
        None if metric is None else _metric(metric),
        direction=direction,
        bounds=None if metric_range is None else _ends(metric_range),
    )


def _ends(text: str) -> tuple[float, float]:
    """Read `0:1`; `0:` is without an upper end."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(low or "-inf"), float(high or "inf")
    except ValueError as error:
        raise OptionError(f"`--metric-range {text}` is not LOW:HIGH", hint="write `0:1`") from error


def _part(text: str) -> float:
    """Read `1%` or `0.01`."""
    try:
        return float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError as error:
        raise OptionError(f"`--max-drop {text}` is not a part", hint="write `1%`") from error


def _metric(words: str) -> object:
    """Return a name, or what `module:function` names; the working folder is searched as well."""
    module, colon, name = words.partition(":")
    if not colon:
        from vermilion.quantize.own_metric import as_metric

        as_metric(words)  # is there such a name?
        return words
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
    if not callable(found) and not hasattr(found, "update"):
        raise OptionError(f"`--metric {words}` is not a function")
    return found


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
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
