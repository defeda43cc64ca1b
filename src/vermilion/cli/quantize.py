"""`vermilion quantize`: a float model and samples → a quantized model and its accuracy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.options import Dims, Model, bytes_for_people, parse_dims, parse_shape
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.quantization import QuantizedFile
    from vermilion.quantize.samples import Layout

_WORST_LAYERS = 8


@verb("quantize")
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
    scheme: Annotated[str, typer.Option("--scheme", help="The number format.")] = "xint8",
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
    equalize: Annotated[
        bool, typer.Option("--equalize", help="Balance weights across layers first.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", help="Nodes that stay in float; `*` matches. May be repeated."),
    ] = None,
) -> Result:
    """Quantize a model, and say layer by layer what that costs in accuracy."""
    from vermilion.quantization import quantize_file

    if calib == "random":
        terminal.warn("calibrating on random data: scales and accuracy mean nothing for real data")
    with random_data_was_mentioned():
        quantized = quantize_file(
            model,
            output,
            calib=calib,
            scheme=scheme,
            samples=samples,
            dims=parse_dims(dim),
            mean=_numbers(mean, "--mean", (0.0,)),
            std=_numbers(std, "--std", (1.0,)),
            layout=_layout(layout),
            resize=_size(resize),
            equalize=equalize,
            exclude=exclude or (),
            progress=terminal.progress,
        )
    return Result(quantized.as_json(), lambda: _view(quantized))


@contextmanager
def random_data_was_mentioned() -> Iterator[None]:
    """Keep the library's own log line about random samples from saying it a second time."""
    logger = logging.getLogger("vermilion.quantize.samples")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


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
    return Group(
        f"{file.output} ({size}): {found.scheme}, {found.samples} "
        f"{'sample' if found.samples == 1 else 'samples'}, "
        f"{file.seconds:.1f} s, peak memory {file.peak_rss_mb:.0f} MB",
        "",
        "against the float model, on calibration samples",
        outputs,
        "",
        f"the {len(worst)} layers furthest from float, of {len(found.layers)}",
        layers,
    )
