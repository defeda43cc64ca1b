"""A transformer's small operators fused by ONNX Runtime's own optimizer, and the result proven.

The fused operators are ONNX Runtime's (domain `com.microsoft`): its CPU, MIGraphX and other
providers run them, ahead-of-time compilers of plain ONNX do not. The optimizer is a script that
matches patterns; it runs in a child process, and what it gives is held against the model as it came
on several inputs before it is kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError, Refusal, UnsupportedError
from vermilion.files import check_not_source, check_writable
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.run import open_literally
from vermilion.ir.load import load_model
from vermilion.ir.measure import Agreement, agreement
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_dimensions, symbolic_names
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import draw_accepted
from vermilion.progress import Progress, no_progress
from vermilion.quantization import save_model

Tensors = Mapping[str, np.ndarray]

# Of `onnxruntime.transformers.optimizer`, those that are one graph from tokens to an output.
TYPES = ("bert", "bart", "clip", "gpt2", "t5", "vit", "swin", "conformer", "phi")
PRECISIONS = ("fp32", "fp16")
# Fused kernels sum in another order, and some compute their exponentials by other polynomials;
# float16 rounds every intermediate result at 2⁻¹¹.
LEAST_DB = {"fp32": 70.0, "fp16": 35.0}
LIMIT_S = 1800.0
_PROBES = 3
_FUSED = "com.microsoft"
_OPTIMIZER = (sys.executable, "-m", "onnxruntime.transformers.optimizer")
# Sizes to try open dimensions at: what is right at one may be wrong at another.
_OPEN_SIZES = ((1, 8), (2, 16))


@dataclass(frozen=True)
class Optimized:
    """What was fused, and how far the result is from the model as it came."""

    output: Path
    kind: str
    precision: str
    nodes_before: int
    nodes_after: int
    fused: dict[str, int]  # fused operators, by type
    agreements: tuple[Agreement, ...]  # the worst of each output over all inputs tried
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether every output keeps what the precision leaves."""
        least = LEAST_DB[self.precision]
        return all(row.sqnr_db >= least and not row.has_nan for row in self.agreements)

    def as_json(self) -> dict[str, object]:
        """Return the keys of `optimize --json`."""
        return {
            "output": self.output,
            "type": self.kind,
            "precision": self.precision,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "fused": self.fused,
            "outputs": [row.as_json() for row in self.agreements],
            "least_sqnr_db": LEAST_DB[self.precision],
            "seconds": self.seconds,
        }


def optimize_transformer(
    model: Path,
    output: Path,
    *,
    kind: str = "bert",
    heads: int = 0,
    width: int = 0,
    precision: str = "fp32",
    dims: Dimensions | None = None,
    progress: Progress = no_progress,
) -> Optimized:
    """Fuse a transformer's operators and write the result, if it computes the same.

    `heads` and `width` (of the hidden state) 0 are read from the graph by the optimizer.
    Raises: OptionError; UnsupportedError where the optimizer fails.
    """
    if kind not in TYPES or precision not in PRECISIONS:
        wrong, known = (kind, TYPES) if kind not in TYPES else (precision, PRECISIONS)
        raise OptionError(f"`{wrong}` is not known here", hint=f"it is one of {', '.join(known)}")
    if output.suffix != ".onnx":
        raise OptionError(f"the output `{output}` does not end in .onnx", hint="name it NAME.onnx")
    if heads < 0 or width < 0 or (heads and width % heads):
        raise OptionError(
            f"no hidden state of {width} has {heads} heads of one size",
            hint="`--width` is a multiple of `--heads`; 0 for both reads them from the graph",
        )
    check_not_source(output, model)
    check_writable(output)
    begin = time.perf_counter()
    source = bind_dimensions(load_model(model), dims or {})
    prepared = simplify(source).model
    _scalars(prepared)
    with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
        progress("fuse", 0, 2)
        ir.save(prepared, Path(work) / "in.onnx")
        words = ["--model_type", kind, "--opt_level", "0", "--use_raw_attention_mask"]
        words += ["--num_heads", str(heads), "--hidden_size", str(width)]
        words += ["--float16"] if precision == "fp16" else []
        _run(words, Path(work))
        fused = load_model(Path(work) / "out.onnx")
        progress("compare", 1, 2)
        result = Optimized(
            output=output,
            kind=kind,
            precision=precision,
            nodes_before=len(source.graph),
            nodes_after=len(fused.graph),
            fused=dict(Counter(n.op_type for n in fused.graph if n.domain == _FUSED)),
            agreements=_compare(source, fused),
            seconds=time.perf_counter() - begin,
        )
        if result.agrees:
            save_model(fused, output)
    return result


def _scalars(model: ir.Model) -> None:
    """Make scalars of constants [c] where that is the same: the optimizer reads them as numbers.

    It calls `float` on an array of one element, which NumPy takes no more.
    """
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tuple(tensor.shape.numpy()) != (1,) or value.is_graph_input():
            continue
        if all(_broadcasts(use.node, value) for use in value.uses()):
            array = tensor.numpy().reshape(())
            value.const_value = ir.tensor(array, dtype=tensor.dtype, name=value.name)
            value.shape = ir.Shape(())


def _broadcasts(node: ir.Node, value: ir.Value) -> bool:
    if node.op_type not in ("Add", "Sub", "Mul", "Div", "Pow"):
        return False
    shapes = [other.shape for other in node.inputs if other is not value and other is not None]
    return len(shapes) == 1 and shapes[0] is not None and len(shapes[0]) >= 1


def _run(words: list[str], folder: Path) -> None:
    log = folder / "log.txt"
    command = [*_OPTIMIZER, "--input", "in.onnx", "--output", "out.onnx", *words]
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=LIMIT_S,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"the optimizer took more than {LIMIT_S:g} s") from error
    if done.returncode or not (folder / "out.onnx").is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit code {done.returncode}"
        missing = last.partition("No module named ")[2].strip("'\"")
        raise UnsupportedError(
            f"ONNX Runtime's optimizer failed: {last}",
            hint=f"pip install {missing}" if missing else "another `--type` may fit the graph",
        )


def _compare(source: ir.Model, fused: ir.Model) -> tuple[Agreement, ...]:
    """Run both on several inputs; give the worst agreement of each output."""
    before, after = open_literally(source), None
    worst: dict[str, Agreement] = {}
    for inputs, expected in _probes(source, before.run):
        # Not before the model itself has shown that it opens and comes to an end.
        after = open_session(fused, quiet=True) if after is None else after
        found = run_session(after, _typed(inputs, fused))
        for name, array in expected.items():
            row = agreement(name, array, found[name])
            if name not in worst or row.sqnr_db < worst[name].sqnr_db:
                worst[name] = row
    return tuple(worst.values())


def _probes(
    source: ir.Model, run: Callable[[Tensors], dict[str, np.ndarray]]
) -> Iterator[tuple[Tensors, dict[str, np.ndarray]]]:
    """Yield inputs and what they give: three draws, and where sizes are open, at two sizes each.

    Raises: UnsupportedError where `run` takes no sample.
    """
    names = symbolic_names(source)
    for first, others in _OPEN_SIZES if names else _OPEN_SIZES[:1]:
        # The first open dimension is the batch, whatever it is called; the others are lengths.
        sizes = {name: others if at else first for at, name in enumerate(names)}
        for seed in range(_PROBES):
            found = draw_accepted(source, "ordinary", run, seed=seed, sizes=sizes)
            if isinstance(found, Refusal):  # these sizes do not fit the graph
                found = draw_accepted(source, "ordinary", run, seed=seed)
            if isinstance(found, Refusal):
                raise UnsupportedError(found.reason, hint=found.hint)
            yield found[0].inputs, found[1]


def _typed(inputs: Tensors, fused: ir.Model) -> dict[str, np.ndarray]:
    """Return the inputs in the types that the fused model wants: float16 ones may be narrower."""
    wanted = {value.name: value.dtype for value in fused.graph.inputs}
    found = {}
    for name, array in inputs.items():
        dtype = wanted.get(name)
        found[name] = array if dtype is None else array.astype(dtype.numpy())
    return found
