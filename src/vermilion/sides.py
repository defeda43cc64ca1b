"""What is compared or run: a model file, compiled or as it is, or a compiled bundle."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.api import compile_model
from vermilion.errors import OptionError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.run import check_opens, check_runs, open_literally
from vermilion.ir.load import load_model
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_dimensions, open_dimensions
from vermilion.ir.samples import open_axes
from vermilion.progress import Progress, no_progress
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.feeds import checked_feeds
from vermilion.runtime.placement_line import ONNX_RUNTIME, named_place
from vermilion.runtime.session import is_artifact, open_bundle_runner
from vermilion.runtime.write import tensor_record

LITERAL = "literal"

Array = NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class Side:
    """One of the two: how it runs as a whole, and the graph behind it.

    `placement` says in one line how many operators are native, where a compiler decided that.
    `expected` computes what the other side is held to; None: what it runs.
    """

    label: str
    runs_on: str
    run: Callable[[Tensors], dict[str, Array]]
    model: ir.Model
    modelled: bool = False
    notes: tuple[str, ...] = ()
    placement: str = ""
    expected: Callable[[Tensors], dict[str, Array]] | None = None


def fixed_sizes(reference: ir.Model, other: ir.Model) -> dict[str, int]:
    """Return the sizes of open dimensions of the reference that are fixed in `other`."""
    given, fitting = required_inputs(reference), required_inputs(other)
    if len(given) != len(fitting):
        return {}
    by_name = {value.name: value for value in fitting}
    if by_name.keys() != {value.name for value in given}:
        by_name = {value.name: twin for value, twin in zip(given, fitting, strict=True)}
    found: dict[str, int] = {}
    for value, axis, name in open_axes(reference):
        shape = by_name[value.name].shape
        size = shape.dims[axis] if shape is not None and axis < len(shape) else None
        if isinstance(size, int) and size > 0:
            found[name] = size
    return found


def onnx_side(label: str, model: ir.Model, *, threads: int = 0) -> Side:
    """Make a side of a model as it is, run by ONNX Runtime on the CPU.

    Raises: UnsupportedError where it cannot run the model.
    """
    check_opens(model)
    session = open_session(model, quiet=True, threads=threads)
    run = _checking(model, partial(run_session, session))
    return Side(label, "CPU (ONNX Runtime)", run, model)


def literal_side(label: str, model: ir.Model) -> Side:
    """Make a side of a model run literally, operator by operator: nothing is optimized."""
    opened = open_literally(model)
    return Side(label, "CPU (literal run)", _checking(model, opened.run), model)


def _checking(
    model: ir.Model, execute: Callable[[Tensors], dict[str, Array]]
) -> Callable[[Tensors], dict[str, Array]]:
    """Return what runs a model on inputs that were looked at first."""
    required = {value.name for value in required_inputs(model)}
    is_checked = False

    def run(given: Tensors) -> dict[str, Array]:
        nonlocal is_checked
        wanted = [v for v in model.graph.inputs if v.name in required or v.name in given]
        feeds = checked_feeds(given, [tensor_record(v) for v in wanted])
        if not is_checked:
            check_runs(model, feeds)
            is_checked = True
        return execute(feeds)

    return run


def artifact_side(label: str, artifact: Path, *, threads: int = 0) -> Side:
    """Make a side of a compiled bundle, run as it is compiled."""
    whole = open_bundle_runner(artifact, threads=threads)
    model = _in_its_numbers(open_artifact(artifact))
    return Side(
        label, whole.runs_on, whole.run, model, whole.modelled, whole.notes, whole.placement
    )


def _in_its_numbers(reader: ArtifactReader) -> ir.Model:
    """Return the bundle's graph; of a modelled device that runs all of it, with its roundings."""
    model = reader.model()
    numbers = {part.details.get("numbers", "") for part in reader.manifest.parts}
    if numbers not in ({"bf16"}, {"bfp16"}):
        return model
    from vermilion.backends.npu_numbers import in_standard_operators

    return in_standard_operators(model, "bf16" if numbers == {"bf16"} else "bfp16")


def open_side(
    what: str,
    *,
    dims: Dimensions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: Progress = no_progress,
) -> Side:
    """Make a side of `MODEL.onnx`, a compiled folder, `NAME.rai`, or `MODEL.onnx@PLACE`.

    A model file is compiled first, for this CPU or for the target that is named. The places
    `onnxruntime` and `literal` are no targets: what is there runs it as it is.

    Raises: VermilionError of the kind that says who can fix it.
    """
    file, place = split_place(what)
    if not place and is_artifact(file):
        return artifact_side(file.name, file, threads=threads)
    label = f"{file.name}@{place}" if place else file.name
    if place in (*ONNX_RUNTIME, LITERAL):
        model = bind_dimensions(load_model(file), dims or {})
        if place == LITERAL:
            return literal_side(label, model)
        return onnx_side(label, model, threads=threads)
    compiled = compile_model(
        file, target=place or "cpu", dims=dims, cache_dir=cache_dir, progress=progress
    )
    return artifact_side(label, compiled.artifact, threads=threads)


def open_reference(
    what: str,
    other: Side,
    *,
    timed: bool = True,
    dims: Dimensions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: Progress = no_progress,
) -> Side:
    """Make the side that the other is held to.

    What is expected of a model file is its literal run; it is compiled for its time, if that is
    wanted, in the other side's sizes. With a place, and compiled, it is what it computes itself.

    Raises: VermilionError of the kind that says who can fix it.
    """
    file, place = split_place(what)
    if place or is_artifact(file):
        return open_side(
            what, dims=dims, cache_dir=cache_dir, threads=threads, progress=progress
        )  # fmt: skip
    model = bind_dimensions(load_model(file), dims or {})
    sizes, named = fixed_sizes(model, other.model), set(open_dimensions(model))
    sizes = {name: size for name, size in sizes.items() if name in named}
    literal = literal_side(file.name, bind_dimensions(model, sizes))
    if not timed:
        return literal
    known = {**(dims or {}), **sizes}
    compiled = compile_model(file, dims=known, cache_dir=cache_dir, progress=progress)
    side = artifact_side(file.name, compiled.artifact, threads=threads)
    return replace(side, model=literal.model, expected=literal.run)


def read_graph(what: str, dims: Dimensions) -> ir.Model:
    """Return the graph behind what `open_side` takes; nothing is compiled."""
    file, place = split_place(what)
    if not place and is_artifact(file):
        return open_artifact(file).model()
    return bind_dimensions(load_model(file), dims)


def split_place(what: str) -> tuple[Path, str]:
    """Take `MODEL.onnx@PLACE` apart; a file of that very name is no place.

    Raises: OptionError where there is no such file, or it is compiled already.
    """
    path, place = named_place(what)
    if not path.exists():
        raise OptionError(
            "there is no such model, folder or `.rai`",
            where=what,
            hint="check the path; a target stands behind the file: `MODEL.onnx@TARGET`",
        )
    if place and is_artifact(path):
        raise OptionError(
            "it is compiled already: its target is settled",
            where=what,
            hint="leave out what stands behind `@`, or give the ONNX file",
        )
    return path, place
