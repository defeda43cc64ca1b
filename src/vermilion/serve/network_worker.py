"""The process that a network runs in (`vermilion.process`): opens it, then runs batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vermilion.errors import (
    ModelError,
    OptionError,
    Refusal,
    UnsupportedError,
    VermilionError,
    first_line,
)
from vermilion.process.arrays import read_values, write_values
from vermilion.serve.tensors import Array, Tensor, tensor_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.ir.passes.bind_dimensions import Dimensions

Run = Callable[[Mapping[str, Array]], Sequence[Array]]

# Other open sizes than the batch, when the model is tried: the first that it takes.
_SIZES = (8, 1)
# Rows are apart where what joining them changes is this share of the largest number, or less: as
# another tiling of a product in eight bits may.
_APART = 0.02


class Worker:
    """The open model."""

    def open(
        self,
        path: str,
        place: str,
        dims: dict[str, Any],
        threads: int,
        cache_dir: str | None,
        values: str,
    ) -> dict[str, Any]:
        """Open a model, compile it where it is not, and run it once.

        `values` is a folder for arrays. Returns what the model is, and where it runs.

        Raises: VermilionError of the kind that says why it cannot be; ModelError where no inputs
        run it.
        """
        self._folder = Path(values)
        sizes = {name: tuple(n) if isinstance(n, list) else n for name, n in dims.items()}
        self._run, about, model = _opened(Path(path), place, sizes, threads, cache_dir)
        inputs = [tensor_of(row) for row in about["inputs"]]
        outputs = [tensor_of(row) for row in about["outputs"]]
        self._names = [tensor.name for tensor in outputs]
        batched, note = _tried(self._run, inputs, outputs, model)
        return {**about, "batched": batched, "note": note}

    def run(self, rows: dict[str, Any], number: int) -> dict[str, Any]:
        """Run the model on the values of a file, and write what comes out to another."""
        inputs = read_values(rows, self._folder / f"in{number}", mapped=True)
        try:
            found = self._run(inputs)
        except (VermilionError, MemoryError):
            raise
        except Exception as error:  # it has run: these inputs are what it does not take
            words = first_line(error)
            raise OptionError(f"the model does not run with these inputs: {words}") from error
        named = dict(zip(self._names, found, strict=True))
        return {"rows": write_values(named, self._folder / f"out{number}")}


def _opened(
    path: Path, place: str, dims: Dimensions, threads: int, cache_dir: str | None
) -> tuple[Run, dict[str, Any], Callable[[], ir.Model]]:
    """Return what runs the model, what it is, and what returns its graph."""
    if place:
        from vermilion.runtime.placement_line import ONNX_RUNTIME

        if place in ONNX_RUNTIME:
            return _open_onnx(path, dims, threads)
    from vermilion.runtime.session import Session, is_artifact

    artifact, native, total = path, 0, 0
    if not is_artifact(path):
        from vermilion.api import compile_model

        compiled = compile_model(path, target=place or "cpu", dims=dims, cache_dir=cache_dir)
        artifact = compiled.artifact
    session = Session(artifact, threads=threads)
    for part in session.manifest.parts:
        total += part.operators
        native += part.operators if part.backend != "ort" else 0
    names = [output.name for output in session.get_outputs()]
    places = dict.fromkeys(place.partition(": ")[2] for place in session.runs_on)
    about = {
        "inputs": [_row(one.name, one.type, one.shape) for one in session.manifest.inputs],
        "outputs": [_row(one.name, one.type, one.shape) for one in session.manifest.outputs],
        "runs_on": "; ".join(places),
        "placement": session.placement,
        "fallback": total - native,
    }
    return lambda inputs: session.run(names, inputs), about, session.model


def _open_onnx(
    path: Path, dims: Dimensions, threads: int
) -> tuple[Run, dict[str, Any], Callable[[], ir.Model]]:
    import onnxruntime as ort

    from vermilion.ir.execute import open_session, run_session
    from vermilion.ir.load import load_model
    from vermilion.ir.passes.bind_dimensions import bind_dimensions

    model = bind_dimensions(load_model(path), dims)
    session = open_session(model, threads=threads)
    names = [one.name for one in session.get_outputs()]

    def run(inputs: Mapping[str, Array]) -> Sequence[Array]:
        found = run_session(session, inputs, names)
        return [found[name] for name in names]

    # ONNX Runtime says of a tensor of any rank that it is a scalar.
    values = (*model.graph.inputs, *model.graph.outputs)
    ranked = {value.name for value in values if value.shape is not None}

    def rows(known: Sequence[ort.NodeArg]) -> list[dict[str, Any]]:
        shapes = {one.name: one.shape if one.name in ranked else None for one in known}
        return [_row(one.name, one.type, shapes[one.name]) for one in known]

    about = {
        "inputs": rows(session.get_inputs()),
        "outputs": rows(session.get_outputs()),
        "runs_on": f"CPU (ONNX Runtime {ort.__version__})",
        "placement": "",
        "fallback": 0,
    }
    return run, about, lambda: model


def _row(name: str, type_: str, shape: Sequence[int | str | None] | None) -> dict[str, Any]:
    return {"name": name, "type": type_, "shape": None if shape is None else list(shape)}


def batch_axis(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Say whether the first axis of all inputs and outputs is one open size."""
    firsts = {tensor.shape[0] if tensor.shape else None for tensor in (*inputs, *outputs)}
    return bool(inputs) and len(firsts) == 1 and isinstance(firsts.pop(), str)


def _tried(
    run: Run,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    model: Callable[[], ir.Model],
) -> tuple[bool, str]:
    """Run the model, so that what is made at the first run is made.

    Say whether requests may share a batch: the first axis is one open size of all, and rows that
    are joined give what each gives alone. The other says why not, where that is not plain.

    Raises: ModelError where it runs neither with plain inputs nor with those that its graph allows.
    """
    is_wanted = batch_axis(inputs, outputs)
    for size in _SIZES:
        first, second = _drawn(inputs, size, 1), _drawn(inputs, size, 2)
        try:
            apart = [run(first), run(second)]
        except Exception:  # a library may raise anything; other inputs may do
            continue
        return _shares(run, (first, second), apart) if is_wanted else (False, "")
    batch = inputs[0].shape[0] if is_wanted and inputs[0].shape else None
    rows = _allowed(run, model(), {str(batch): 1} if is_wanted else {})
    return _shares(run, rows, [run(row) for row in rows]) if is_wanted else (False, "")


def _shares(
    run: Run, rows: Sequence[Mapping[str, Array]], apart: Sequence[Sequence[Array]]
) -> tuple[bool, str]:
    """Say whether two rows give the same in one batch as `apart`, and if not why."""
    first, second = rows
    try:
        joined = run({name: np.concatenate([first[name], second[name]]) for name in first})
    except Exception as error:  # of a library
        return False, f"requests share no batch: two rows do not run: {first_line(error)}"
    if all(_alike(a, b, c) for a, b, c in zip(*apart, joined, strict=True)):
        return True, ""
    return False, "requests share no batch: its rows depend on each other"


def _allowed(
    run: Run, model: ir.Model, sizes: Mapping[str, int]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Return two samples of one size that the graph allows and the model runs.

    Raises: ModelError where there are none.
    """
    from vermilion.ir.samples import draw_accepted, draw_sample

    def tried(inputs: Mapping[str, Array]) -> None:
        try:
            run(inputs)
        except Exception as error:  # of a library
            raise UnsupportedError(first_line(error)) from error

    found = draw_accepted(model, "ordinary", tried, seed=1, sizes=sizes)
    if isinstance(found, Refusal):
        raise ModelError(
            f"its trial run failed: {found.reason}",
            hint="`vermilion run MODEL` shows how it runs; `--dim` fixes dynamic sizes",
        )
    sample, _ = found
    return sample.inputs, draw_sample(model, seed=2, sizes=sample.sizes).inputs


def _drawn(inputs: Sequence[Tensor], size: int, seed: int) -> dict[str, Array]:
    """Return one row of inputs: numbers, whole ones of 0 and 1, which are indices of anything."""
    random = np.random.default_rng(seed)
    found = {}
    for tensor in inputs:
        sizes = list(tensor.shape or ())
        shape = [n if isinstance(n, int) else 1 if at == 0 else size for at, n in enumerate(sizes)]
        if tensor.dtype.kind == "O":
            found[tensor.name] = np.full(shape, "a", object)
        elif tensor.dtype.kind in "iub":
            found[tensor.name] = random.integers(0, 2, shape).astype(tensor.dtype)
        else:
            found[tensor.name] = random.standard_normal(shape).astype(tensor.dtype)
    return found


def _alike(first: Array, second: Array, joined: Array) -> bool:
    if not all(isinstance(one, np.ndarray) and one.ndim for one in (first, second, joined)):
        return False
    if joined.shape[0] != first.shape[0] + second.shape[0] or joined.shape[1:] != first.shape[1:]:
        return False
    apart = np.concatenate([first, second])
    if apart.dtype.kind in "Ob" or apart.dtype.kind in "iu":
        return bool(np.array_equal(apart, joined))
    numbers, others = apart.astype(np.float64), joined.astype(np.float64)
    is_same = np.isfinite(numbers) == np.isfinite(others)
    numbers, others = (np.nan_to_num(x, posinf=0.0, neginf=0.0) for x in (numbers, others))
    largest = max(float(np.abs(numbers).max(initial=0.0)), 1e-30)
    return bool(is_same.all() and np.abs(numbers - others).max(initial=0.0) <= _APART * largest)
