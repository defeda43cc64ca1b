"""`vermilion memory`: what a model needs on a device, before it runs there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable
from vermilion.cli.options import Dims, bytes_for_people, parse_dims, whole_numbers
from vermilion.cli.output import Failure, Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.device_memory import MemoryNeed


@verb("memory")
def memory(
    terminal: Terminal,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            exists=True,
            help="An ONNX file; or a decoder: its `config.json`, its folder, a `.gguf`.",
            show_default=False,
        ),
    ],
    *,
    batch: Annotated[
        str, typer.Option("--batch", "-b", metavar="1,8,…", help="Batch sizes.")
    ] = "1",
    length: Annotated[
        str,
        typer.Option("--length", "-l", metavar="512,…", help="A decoder's tokens; default: 4096."),
    ] = "",
    precision: Annotated[
        str,
        typer.Option(
            "--precision", metavar="fp32|fp16|bf16|int8|int4", help="Default: the model's own."
        ),
    ] = "",
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="GPU", help="Whose library takes the workspace.")
    ] = "",
    dim: Dims = None,
    limit: Annotated[
        float,
        typer.Option("--limit", metavar="GB", min=0, help="Fail if more may be needed; 0: none."),
    ] = 0.0,
) -> Result:
    """Estimate a model's device memory by batch and length: weights, activations, workspace, cache.

    All figures are modelled, as bounds; nothing is compiled or run.
    """
    from vermilion.device_memory import estimate_memory
    from vermilion.llm.device_memory import estimate_decoder, is_decoder

    batches = _numbers(batch, "--batch")
    lengths = _numbers(length, "--length") if length else ()
    if is_decoder(path):
        needs = estimate_decoder(
            path, batches=batches, lengths=lengths, precision=precision, gpu=gpu
        )
    elif lengths:
        raise OptionError("`--length` is for decoders", hint="bind an ONNX model with `--dim`")
    else:
        needs = estimate_memory(
            path, batches=batches, dims=parse_dims(dim), precision=precision, gpu=gpu,
            progress=terminal.progress,
        )  # fmt: skip
    fits = not limit or all(need.total[1] <= limit * 1e9 for need in needs)
    data = {"model": str(path), "needs": [need.as_json() for need in needs], "fits": fits}
    failure = None
    if not fits:
        most = max(need.total[1] for need in needs) / 1e9
        failure = Failure(
            f"it needs up to {most:.2f} GB, `--limit` gives {limit:g} GB",
            where=str(path),
            hint="a smaller batch, length or precision needs less",
        )
    return Result(data, lambda: _view(needs, limit), ok=fits, failure=failure)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    numbers = whole_numbers(text)
    if numbers is None:
        raise OptionError(f"`{option} {text}` is no list of sizes", hint=f"`{option} 1,8`")
    return numbers


def _view(needs: Sequence[MemoryNeed], limit: float) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("batch", 0), Column("length", 0), Column("weights", 3), Column("activations", 4),
        Column("workspace", 6), Column("cache", 2), Column("runtime", 5), Column("total", 1),
    )  # fmt: skip
    rows = [
        (
            str(need.batch), str(need.length or ""), bytes_for_people(need.weights),
            _bounds(need.activations), bytes_for_people(need.workspace),
            bytes_for_people(need.cache) if need.cache else "", _bounds(need.runtime),
            _bounds(need.total),
        )
        for need in needs
    ]  # fmt: skip
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    lines: list[RenderableType] = [
        FittedTable([columns[at] for at in used], [[row[at] for at in used] for row in rows]), "",
        "modelled: activations from reusing all memory to reusing none; the runtime's share quoted",
    ]  # fmt: skip
    over = [need for need in needs if limit and need.total[1] > limit * 1e9]
    if over:
        lines.append(f"over {limit:g} GB at batch " + ", ".join(str(need.batch) for need in over))
    return Group(*lines)


def _bounds(pair: tuple[int, int]) -> str:
    low, high = (bytes_for_people(one) for one in pair)
    return low if low == high else f"{low} to {high}"
