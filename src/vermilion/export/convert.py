"""PyTorch's two exporters, used for what each does well, and kept quiet.

The TorchScript exporter writes opset 17 itself; PyTorch calls it deprecated and still ships it.
The exporter on `torch.export` writes 18 and later, and reaches 17 only by converting back, which
may fail. So up to 17 the first is tried first, from 18 on the second, and the other one after.
Where sizes stay open the second is always first: the tracer freezes sizes that Python computes
with, those of MultiheadAttention among them, and `torch.export` follows them or refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from vermilion.errors import UnsupportedError

if TYPE_CHECKING:
    import torch


_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_STDOUT = 1


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Keep what is printed on stdout, logged or warned from the user; give the warnings."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with (
        warnings.catch_warnings(record=True) as heard,
        contextlib.redirect_stdout(io.StringIO()),
        _native_stdout_dropped(),
    ):
        warnings.simplefilter("always")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield heard
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _native_stdout_dropped() -> Iterator[None]:
    """Drop what C++ prints: PyTorch 2.13 turns on its log of whole graphs and never off.

    Source: `setup_onnx_logging` in torch/onnx/_internal/torchscript_exporter/utils.py tests a
    function where it means to call it.
    """
    _flush_native()
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # there is no stdout to keep clean
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)
    try:
        yield
    finally:
        _flush_native()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush_native() -> None:
    """Let C's buffers out while the file descriptor still leads where they belong."""
    ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None).fflush(None)


LAST_TORCHSCRIPT_OPSET = 17

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Job:
    """What is to be exported, and under which names; `open_axes` names open sizes by input."""

    module: torch.nn.Module
    tensors: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    opset: int
    open_axes: tuple[Mapping[int, str], ...] = ()


@dataclass(frozen=True)
class Converted:
    """A graph, which exporter made it, and what the tracer warned of."""

    model: ir.Model
    exporter: str
    notes: tuple[str, ...]


TORCHSCRIPT, TORCH_EXPORT = "torchscript", "torch.export"


def conversions(job: Job, folder: Path) -> Iterator[Converted]:
    """Yield what the exporter that suits the opset gives, then what the other one does.

    Weights may stay in files below `folder`, which must outlive the results.

    Raises: UnsupportedError with what each of them said, where neither can.
    """
    attempts = [(TORCHSCRIPT, job.opset), (TORCH_EXPORT, job.opset)]
    if job.opset > LAST_TORCHSCRIPT_OPSET or any(job.open_axes):
        attempts.reverse()
    first = convert_by(attempts, job, folder)
    yield first
    if first.exporter == attempts[0][0]:
        with contextlib.suppress(UnsupportedError):
            yield convert_by(attempts[1:], job, folder)


def convert_by(attempts: Sequence[tuple[str, int]], job: Job, folder: Path) -> Converted:
    """Export with the first exporter, each with its opset, that can.

    Raises: UnsupportedError with what each of them said.
    """
    reasons: list[str] = []
    for name, opset in attempts:
        try:
            with quiet() as heard:
                model = _EXPORTERS[name](replace(job, opset=opset), folder)
        except Exception as error:  # each exporter has its own exceptions, and lets others out
            reasons.append(f"{name}: {_reason(error)}")
            continue
        reached = model.opset_imports.get("", 0)
        if reached != opset:
            reasons.append(f"{name}: it gave opset {reached}")
            continue
        fixed = _fixed_sizes(job, model)
        if fixed:
            reasons.append(f"{name}: it made a number of {', '.join(fixed)}")
            continue
        return Converted(model, name, _tracer_notes(heard))
    opsets = " or ".join(dict.fromkeys(str(opset) for _, opset in attempts))
    raise UnsupportedError(
        f"PyTorch cannot export this module to opset {opsets}: {'; '.join(reasons)}",
        where=type(job.module).__name__,
        hint="try `--opset 18` or later, or rewrite the operation that is named above",
    )


def _fixed_sizes(job: Job, model: ir.Model) -> list[str]:
    """Return the open sizes that are numbers in the inputs of the graph."""
    shapes = {str(value.name): value.shape for value in model.graph.inputs}
    found = []
    for name, axes in zip(job.input_names, job.open_axes, strict=False):
        shape = shapes.get(name)
        for axis, size in axes.items() if shape is not None else ():
            if shape is not None and isinstance(shape[axis], int):
                found.append(f"`{size}`")
    return list(dict.fromkeys(found))


def _with_torchscript(job: Job, folder: Path) -> ir.Model:
    import torch

    path = folder / "traced.onnx"  # over 2 GB it puts each weight in a file beside it
    open_axes = {
        name: dict(axes) for name, axes in zip(job.input_names, job.open_axes, strict=False) if axes
    }
    torch.onnx.export(
        job.module, job.tensors, str(path), dynamo=False, dynamic_axes=open_axes or None,
        **_arguments(job),
    )  # fmt: skip
    return ir.load(path)


def _with_torch_export(job: Job, folder: Path) -> ir.Model:
    import torch

    program: Any = torch.onnx.export(
        job.module, job.tensors, dynamo=True, verbose=False, dynamic_shapes=_dynamic_shapes(job),
        **_arguments(job),
    )  # fmt: skip
    model: ir.Model = program.model
    if job.opset < _SPLIT_COUNTS_SINCE:
        _write_parts(model)
    return model


# Before it, a Split has no `num_outputs`; PyTorch's way down from later opsets leaves it.
_SPLIT_COUNTS_SINCE = 18


def _write_parts(model: ir.Model) -> None:
    """Write the sizes of a Split's parts in the place of their number (ONNX Split-18)."""
    for node in model.graph.all_nodes():
        count = node.attributes.pop("num_outputs", None) if node.op_type == "Split" else None
        source = node.inputs[0] if node.inputs else None
        if count is None or source is None or source.shape is None or node.graph is None:
            continue
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        size, parts = source.shape[axis], count.as_int()
        if not isinstance(size, int) or size % parts == 0:
            continue  # equal parts are what a Split without sizes gives
        each = -(-size // parts)
        sizes = [*[each] * (parts - 1), size - each * (parts - 1)]
        constant = ir.node("Constant", [], {"value_ints": sizes}, name=f"{node.name}/sizes")
        constant.outputs[0].name = f"{node.outputs[0].name}/sizes"
        node.graph.insert_before(node, [constant])
        node.resize_inputs(2)
        node.replace_input_with(1, constant.outputs[0])


_EXPORTERS: Mapping[str, Callable[[Job, Path], ir.Model]] = {
    TORCHSCRIPT: _with_torchscript,
    TORCH_EXPORT: _with_torch_export,
}


def _dynamic_shapes(job: Job) -> Any:
    """Return the open sizes as `torch.export` takes them; those of `*tensors` are one argument."""
    import torch

    if not any(job.open_axes):
        return None
    names = dict.fromkeys(name for axes in job.open_axes for name in axes.values())
    sizes = {name: torch.export.Dim(name) for name in names}
    each = tuple({axis: sizes[name] for axis, name in axes.items()} for axes in job.open_axes)
    parameters = inspect.signature(job.module.forward).parameters.values()
    is_packed = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return (each,) if is_packed else each


def _arguments(job: Job) -> dict[str, Any]:
    return {
        "opset_version": job.opset,
        "input_names": list(job.input_names),
        "output_names": list(job.output_names),
    }


def _tracer_notes(heard: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """Keep the warnings that concern the result: a branch or number frozen while tracing."""
    notes = [
        f"{_first_line(str(warning.message))} ({Path(warning.filename).name}:{warning.lineno})"
        for warning in heard
        if warning.category.__name__ == "TracerWarning"
    ]
    return tuple(dict.fromkeys(notes))


def _reason(error: BaseException) -> str:
    # `torch.export`'s exporter wraps what went wrong in advice on how to report it.
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    return f"{type(root).__name__}: {_first_line(str(root))}"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return lines[0] if lines else ""
