"""`vermilion run`: inputs → outputs, from a model, a compiled folder or a `.rai`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.options import CacheDir, Dims, Inputs, Threads, load_inputs, parse_dims
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.runtime.session import BundleRunner
    from vermilion.sides import Array, Side


@verb("run")
def run(
    terminal: Terminal,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[@PLACE]|FOLDER|NAME.rai",
            help="A model file is compiled first: for this CPU, or for a target (`m.onnx@strix`); "
            "`m.onnx@onnxruntime` is run as it is.",
            show_default=False,
        ),
    ],
    *,
    input: Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME.npz|NAME.npy|FOLDER",
            help="Write the outputs: to one .npz, a single one to a .npy, or each to a file in a "
            "folder with an index.",
        ),
    ] = None,
    dim: Dims = None,
    threads: Threads = 0,
    cache_dir: CacheDir = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Only print which inputs are needed.")
    ] = False,
    bucket: Annotated[
        list[Path] | None,
        typer.Option(
            "--bucket",
            metavar="NAME.rai",
            help="The same model compiled for another size: the one that fits is run.",
        ),
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            "--pad",
            metavar="VALUE|INPUT=VALUE",
            help="With --bucket: pad what fits none, if that changes nothing; else it is refused.",
        ),
    ] = None,
) -> Result:
    """Run a model once, write its outputs, and say how much of it ran where.

    Without `--input`, sample inputs with a fixed seed are used, and a warning says so.
    """
    if bucket:
        return _run_bucketed([model, *bucket], input, pad, output, threads)
    if schema:
        return _schema(model, dim)
    from vermilion.ir.value_files import check_form, write_values

    if output is not None:
        check_form(output)
    from vermilion.runtime.session import is_artifact, open_bundle_runner

    inputs = load_inputs(input)
    side: Side | BundleRunner
    # What a bundle needs beside its graph loads in a tenth of the time.
    if inputs and Path(model).exists() and is_artifact(Path(model)):
        side = open_bundle_runner(Path(model), threads=threads)
        _tell_notes(terminal, side)
    else:
        from vermilion.sides import open_side

        side = open_side(
            model,
            dims=parse_dims(dim),
            cache_dir=cache_dir,
            threads=threads,
            progress=terminal.progress,
        )
        _tell_notes(terminal, side)
        inputs = inputs or _samples(terminal, side)
    begin = time.perf_counter()
    outputs = side.run(inputs)
    milliseconds = (time.perf_counter() - begin) * 1e3
    if output is not None:
        write_values(output, outputs)
    data = {
        "model": model,
        "runs_on": side.runs_on,
        "placement": side.placement,
        "modelled": side.modelled,
        "milliseconds": milliseconds,
        "output": output,
        "outputs": _described(outputs),
    }
    return Result(data, lambda: _view(side, outputs, milliseconds, output))


def _run_bucketed(
    programs: Sequence[str | Path],
    words: Sequence[str] | None,
    pad: Sequence[str] | None,
    output: Path | None,
    threads: int,
) -> Result:
    """Run inputs on the program for their size, or padded on the next."""
    from vermilion.ir.value_files import check_form, write_values
    from vermilion.runtime.buckets import BucketSession

    if output is not None:
        check_form(output)
    inputs = load_inputs(words)
    if not inputs:
        raise OptionError("inputs say which program is run", hint="give `--input`")
    session = BucketSession(
        [Path(program) for program in programs], pad=_padding(pad), threads=threads
    )
    at, is_padded = session.choose(inputs)
    begin = time.perf_counter()
    outputs = session.run(None, inputs)
    milliseconds = (time.perf_counter() - begin) * 1e3
    runs_on = "; ".join(session.runs_on(at))
    session.close()
    if output is not None:
        write_values(output, outputs)
    data = {
        "model": str(programs[at]),
        "padded": is_padded,
        "runs_on": runs_on,
        "milliseconds": milliseconds,
        "output": output,
        "outputs": _described(outputs),
    }
    return Result(data, lambda: _bucket_view(data, outputs))


def _padding(words: Sequence[str] | None) -> float | dict[str, float] | None:
    """Read `--pad 0`, or `--pad mask=0 --pad ids=1`. Raises: OptionError."""
    named: dict[str, float] = {}
    for word in words or ():
        name, equals, value = word.rpartition("=")
        try:
            number = float(value)
        except ValueError as error:
            raise OptionError(
                f"`{value}` is no number", where=f"--pad {word}", hint="write `--pad 0`"
            ) from error
        if not equals and len(words or ()) == 1:
            return number
        if not name:
            raise OptionError("a number for all inputs stands alone", where=f"--pad {word}")
        named[name] = number
    return named or None


def _bucket_view(data: dict[str, object], outputs: dict[str, Array]) -> RenderableType:
    from rich.console import Group

    how = "padded, and cut" if data["padded"] else "exactly its size"
    shapes = (
        f"{name}  {array.dtype}  {'×'.join(map(str, array.shape))}"
        for name, array in outputs.items()
    )
    where = _where(data["output"])
    return Group(f"ran on {data['model']} ({how}): {data['runs_on']}", *shapes, where)


def _where(output: object) -> Verbatim:
    return Verbatim(f"written to {output}" if output else "not written: give --output OUT.npz")


def _tell_notes(terminal: Terminal, side: Side | BundleRunner) -> None:
    from vermilion.runtime.placement_line import told

    for note in told(side.notes, side.placement):
        terminal.warn(note)


def _samples(terminal: Terminal, side: Side) -> dict[str, Array]:
    from vermilion.errors import Refusal, UnsupportedError
    from vermilion.ir.samples import draw_accepted

    graph = side.model.graph
    if all(value.name in graph.initializers for value in graph.inputs):
        return {}
    terminal.warn("no --input given: ran on sample inputs, which mean nothing")
    found = draw_accepted(side.model, "ordinary", side.run)
    if isinstance(found, Refusal):
        raise UnsupportedError(found.reason, hint=found.hint)
    return dict(found[0].inputs)


def _schema(what: str, dim: Sequence[str] | None) -> Result:
    """Print the inputs of a model file or a bundle; nothing is compiled for that."""
    from vermilion.runtime.feeds import shape_text
    from vermilion.runtime.write import tensor_record
    from vermilion.sides import read_graph

    graph = read_graph(what, parse_dims(dim)).graph
    rows: list[dict[str, object]] = [
        {"name": v.name, "dtype": str(v.dtype).lower(), "shape": list(tensor_record(v).shape or ())}
        for v in graph.inputs
        if v.name not in graph.initializers
    ]

    def view() -> RenderableType:
        columns = (
            Column("input", 0, "name"),
            Column("type", 1, "name"),
            Column("shape", 0, "name"),
        )
        drawn = []
        for row in rows:
            sizes = row["shape"] if isinstance(row["shape"], list) else []
            drawn.append((str(row["name"]), str(row["dtype"]), shape_text(sizes)))
        return FittedTable(columns, drawn)

    return Result({"inputs": rows}, view)


def _described(outputs: Mapping[str, object]) -> list[dict[str, object]]:
    """Return name, type and shape of each output; of what is no array, how many it has."""
    import numpy as np

    return [
        {"name": name, "dtype": _type_of(value), "shape": list(value.shape)}
        if isinstance(value, np.ndarray)
        else {"name": name, "dtype": type(value).__name__, "shape": _count(value)}
        for name, value in outputs.items()
    ]


def _type_of(value: Array) -> str:
    """Return the type's name; texts lie in arrays of Python objects."""
    return "string" if value.dtype.kind in "OSU" else str(value.dtype)


def _count(value: object) -> list[int]:
    return [len(value)] if isinstance(value, Sized) else []


def _view(
    side: Side | BundleRunner, outputs: dict[str, Array], milliseconds: float, output: Path | None
) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("output", 0, "name"), Column("type", 3, "name"), Column("shape", 1),
        Column("min", 2), Column("mean", 4), Column("max", 2),
    )  # fmt: skip
    rows = []
    for row, value in zip(_described(outputs), outputs.values(), strict=True):
        sizes = row["shape"] if isinstance(row["shape"], list) else []
        shape = "×".join(map(str, sizes)) or "scalar"
        rows.append((str(row["name"]), str(row["dtype"]), shape, *_figures(value)))
    where = _where(output)
    place = f"on {side.runs_on} " if side.runs_on else ""  # nothing computes without nodes
    ran = f"ran {place}in {milliseconds:.2f} ms (one run, not warmed up)"
    said = f"{ran}: {side.placement}" if side.placement else ran
    return Group(said, FittedTable(columns, rows), where)


def _figures(value: object) -> list[str]:
    """Return least, mean and largest of numbers; nothing of all else."""
    import numpy as np

    from vermilion.ir.value_files import plain_array

    array = plain_array(value) if isinstance(value, np.ndarray) else np.empty(0, object)
    if array.dtype.kind not in "fiub" or not array.size:
        return ["", "", ""]
    wide = array.astype(np.float64)
    return [f"{figure:.5g}" for figure in (wide.min(), wide.mean(), wide.max())]
