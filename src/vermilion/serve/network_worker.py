"""The process that a network runs in (`vermilion.process`): opens it, then runs batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vermilion.errors import VermilionError, first_line
from vermilion.process.arrays import read_values, write_values
from vermilion.serve.tensors import Array, Tensor, tensor_of

if TYPE_CHECKING:
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
        """
        self._folder = Path(values)
        sizes = {name: tuple(n) if isinstance(n, list) else n for name, n in dims.items()}
        self._run, about = _opened(Path(path), place, sizes, threads, cache_dir)
        inputs = [tensor_of(row) for row in about["inputs"]]
        outputs = [tensor_of(row) for row in about["outputs"]]
        self._names = [tensor.name for tensor in outputs]
        batched, note = _tried(self._run, inputs, outputs)
        return {**about, "batched": batched, "note": note}

    def run(self, rows: dict[str, Any], number: int) -> dict[str, Any]:
        """Run the model on the values of a file, and write what comes out to another."""
        inputs = read_values(rows, self._folder / f"in{number}", mapped=True)
        found = self._run(inputs)
        named = dict(zip(self._names, found, strict=True))
        return {"rows": write_values(named, self._folder / f"out{number}")}


def _opened(
    path: Path, place: str, dims: Dimensions, threads: int, cache_dir: str | None
) -> tuple[Run, dict[str, Any]]:
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
    return lambda inputs: session.run(names, inputs), about


def _open_onnx(path: Path, dims: Dimensions, threads: int) -> tuple[Run, dict[str, Any]]:
    import onnxruntime as ort

    from vermilion.ir.execute import open_session, run_session
    from vermilion.ir.load import load_model
    from vermilion.ir.passes.bind_dimensions import bind_dimensions

    session = open_session(bind_dimensions(load_model(path), dims), threads=threads)
    names = [one.name for one in session.get_outputs()]

    def run(inputs: Mapping[str, Array]) -> Sequence[Array]:
        found = run_session(session, inputs, names)
        return [found[name] for name in names]

    return run, {
        "inputs": [_row(one.name, one.type, one.shape) for one in session.get_inputs()],
        "outputs": [_row(one.name, one.type, one.shape) for one in session.get_outputs()],
        "runs_on": f"CPU (ONNX Runtime {ort.__version__})",
        "placement": "",
        "fallback": 0,
    }


def _row(name: str, type_: str, shape: Sequence[int | str | None] | None) -> dict[str, Any]:
    return {"name": name, "type": type_, "shape": None if shape is None else list(shape)}


def batch_axis(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Say whether the first axis of all inputs and outputs is one open size."""
    firsts = {tensor.shape[0] if tensor.shape else None for tensor in (*inputs, *outputs)}
    return bool(inputs) and len(firsts) == 1 and isinstance(firsts.pop(), str)


def _tried(run: Run, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[bool, str]:
    """Run the model, so that what is made at the first run is made.

    Say whether requests may share a batch: the first axis is one open size of all, and rows that
    are joined give what each gives alone. The other says why not, where that is not plain.
    """
    wanted, why = batch_axis(inputs, outputs), ""
    for size in _SIZES:
        try:
            first, second = _drawn(inputs, size, 1), _drawn(inputs, size, 2)
            apart = [run(first), run(second)]
            if not wanted:
                return False, ""
            joined = run({n: np.concatenate([first[n], second[n]]) for n in first})
        except (VermilionError, ValueError, RuntimeError, IndexError) as error:
            why = f"it could not be tried: {first_line(error)}"
            continue
        if all(_alike(a, b, c) for a, b, c in zip(*apart, joined, strict=True)):
            return True, ""
        return False, "requests share no batch: its rows depend on each other"
    return False, why


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
