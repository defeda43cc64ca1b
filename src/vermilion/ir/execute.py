"""Running a graph through ONNX Runtime's CPU provider, the reference that all else is held to.

Small weights travel in the model. Large ones that lie in a file are mapped by ONNX Runtime from
there, so a model over 2 GB needs no copy of them; all others are lent to the session as arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from vermilion.cores import are_limited, usable_cores
from vermilion.errors import UnsupportedError, first_line
from vermilion.ir.limits import bound_memory, bounded_run, check_bound, check_time, ended_after
from vermilion.ir.ort_values import needs_values, ort_value, run_with_values

Array = NDArray[Any]

# Tensors from this size on are lent to the session instead of being written into the model.
LENT_BYTES = 16 * 1024

# Source: `kOrtSessionOptionsModelExternalInitializersFileFolderPath` in ONNX Runtime's
# `onnxruntime_session_options_config_keys.h`. What lies there is mapped; what is lent is copied.
_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"

# Without VNNI, ONNX Runtime adds pairs of products of uint8 and int8 in 16 bits, which cuts off the
# larger ones: an attention in A8W8 that keeps 20 dB or more had 9.8 so on a Zen 3. With this it
# widens them first. Source: `kOrtSessionOptionsAvx2PrecisionMode`, in the same file.
_EXACT_SUMS_ENTRY = "session.x64quantprecision"

# Where only the weight of a product is rounded to 8 bits, or 4, it rounds the other input as well,
# to int8 in blocks of 32; with 1 it computes in float32, as the file says. Source: the same file.
_FLOAT_PRODUCTS_ENTRY = "session.qdq_matmulnbits_accuracy_level"

# For exact sums it turns weights into uint8, and fails over one that two nodes read (1.32), and
# over one with a scale for each block when it runs. Operators between QuantizeLinear and
# DequantizeLinear stay in float then, as they are written.
_WEIGHT_TWICE, _BLOCKS = "Attempt to replace the existing tensor", b"block_size"

# ONNX Runtime prints warnings on stderr for much that is not the user's business.
_SEVERITY_ERROR = 3
_SEVERITY_FATAL = 4

# How `core/framework/sequential_executor.cc` words it, and what ORT_ENFORCE puts before a reason.
_NODE_FAILED = re.compile(
    r"running (?P<operator>\S+) node\. Name:'(?P<name>.*?)' Status Message: (?P<words>.*)"
)
_SOURCE_LINE = re.compile(r"^\S+\.(h|cc):\d+ [^(]*\(.*?\)( const)?( \[.*?\])? ")


def stripped_proto(
    model: ir.Model, lent_bytes: int = LENT_BYTES, keep_in: str | None = None
) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return `model` as a message without its large weights, and those weights by name.

    Before → after: an initializer of `lent_bytes` or more becomes an external reference to a
    file that does not exist; whoever opens the message must supply it by name. What lies in a
    file below the folder `keep_in` stays a reference to that file, and is not among the weights.
    """
    weights: dict[str, ir.TensorProtocol] = {}
    replaced: dict[str, ir.TensorProtocol | None] = {}
    offset = 0
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if not _is_lent(value, tensor, lent_bytes):
            if isinstance(tensor, ir.ExternalTensor) and _is_read(value):
                # Whoever opens the message does not know the folder that this is relative to.
                replaced[name] = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
            continue
        if isinstance(tensor, ir.ExternalTensor) and str(tensor.base_dir) == keep_in:
            continue
        weights[name] = tensor
        replaced[name] = ir.ExternalTensor(
            "weights.bin",
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
        )
        offset += tensor.nbytes
    with _in_place_of(model, replaced):
        proto = ir.to_proto(model)
    _drop_unread_files(proto, model)
    return proto, weights


def _is_lent(value: ir.Value, tensor: ir.TensorProtocol, lent_bytes: int) -> bool:
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return False
    # ONNX Runtime drops a weight that nothing reads, then fails to find it.
    return _is_read(value) and tensor.nbytes >= lent_bytes


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _drop_unread_files(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Drop weights that lie in files and that nothing reads: they need not even be there."""
    initializers = model.graph.initializers
    inputs = {value.name for value in proto.graph.input}
    unread = {
        name
        for name, value in initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
        and not _is_read(value)
        and name not in inputs
    }
    if unread:
        kept = [tensor for tensor in proto.graph.initializer if tensor.name not in unread]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)


@contextmanager
def _in_place_of(
    model: ir.Model, replaced: Mapping[str, ir.TensorProtocol | None]
) -> Iterator[None]:
    """Yield the model other weights for a while."""
    initializers = model.graph.initializers
    kept = {name: initializers[name].const_value for name in replaced}
    try:
        for name, tensor in replaced.items():
            initializers[name].const_value = tensor
        yield
    finally:
        for name, tensor in kept.items():
            initializers[name].const_value = tensor


def split_weights(model: ir.Model, lent_bytes: int = LENT_BYTES) -> tuple[bytes, dict[str, Array]]:
    """Serialize `model` without its large weights; give the bytes and those weights by name."""
    proto, weights = stripped_proto(model, lent_bytes)
    return proto.SerializeToString(), {name: t.numpy() for name, t in weights.items()}


def session_from_bytes(
    serialized: bytes,
    weights: Mapping[str, Array],
    *,
    threads: int = 0,
    optimize: bool = True,
    quiet: bool = False,
    bounded: bool = False,
    folder: str | None = None,
) -> ort.InferenceSession:
    """Open a session on the CPU from what `split_weights` gave.

    A `bounded` one fails instead of taking more than half of the machine's memory. `folder` is
    where the files lie that the model refers to, if it does.

    Raises: UnsupportedError where ONNX Runtime cannot run the model.
    """
    values = [ort_value(array) for array in weights.values()]

    def opened(exact: bool) -> ort.InferenceSession:
        options = ort.SessionOptions()
        # What is tried first says nothing of how it failed: the exception does.
        options.log_severity_level = _SEVERITY_FATAL if quiet or exact else _SEVERITY_ERROR
        # Left to itself, it counts the machine's cores, whatever this process is allowed.
        options.intra_op_num_threads = threads or (usable_cores() if are_limited() else 0)
        # Workers that spin after a run steal time from whatever runs next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry(_EXACT_SUMS_ENTRY, str(int(exact)))
        options.add_session_config_entry(_FLOAT_PRODUCTS_ENTRY, "1")
        if not exact:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if bounded:
            bound_memory(options)
        if folder is not None:
            options.add_session_config_entry(_FOLDER_ENTRY, folder)
        if weights:
            options.add_external_initializers(list(weights), values)
            # Named a second time so, ONNX Runtime uses the arrays where they lie, without copies.
            for name, value in zip(weights, values, strict=True):
                options.add_initializer(name, value)
        return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])

    try:
        try:
            session = opened(exact=_BLOCKS not in serialized)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
            if _WEIGHT_TWICE not in str(error):
                raise
            session = opened(exact=False)
    except Exception as error:
        raise UnsupportedError(
            f"ONNX Runtime cannot run this model: {first_line(error)}",
            hint="run `vermilion inspect MODEL` to see the operators and their versions",
        ) from error
    session.lent_weights = values  # they must live as long as the session
    return session


def open_session(
    model: ir.Model,
    *,
    threads: int = 0,
    optimize: bool = True,
    quiet: bool = False,
    bounded: bool = False,
) -> ort.InferenceSession:
    """Open a session on the CPU for `model`.

    A `bounded` one fails instead of taking more than half of the machine's memory.

    Raises: UnsupportedError where ONNX Runtime cannot run the model.
    """
    folder = weights_folder(model)
    proto, tensors = stripped_proto(model, keep_in=folder)
    return session_from_bytes(
        proto.SerializeToString(),
        {name: tensor.numpy() for name, tensor in tensors.items()},
        threads=threads,
        optimize=optimize,
        quiet=quiet,
        bounded=bounded,
        folder=folder,
    )


@dataclass(frozen=True)
class FedSession:
    """A session that has large weights as inputs, and those weights, by name."""

    session: ort.InferenceSession
    weights: Mapping[str, Array]

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        bounded: bool = False,
        limit_s: float | None = None,
    ) -> dict[str, Array]:
        """Run once with the weights; give and raise what `run_session` does."""
        given = {**self.weights, **inputs}
        return run_session(self.session, given, outputs, bounded=bounded, limit_s=limit_s)


def open_fed_session(model: ir.Model, *, threads: int = 0, quiet: bool = False) -> FedSession:
    """Open a session for a few runs: large float32 weights are handed over with each of them.

    ONNX Runtime copies what it is lent, but not what it is fed: a ResNet-50 is open in 9 ms instead
    of 39 (`bench/open_bench.py`). Nothing is optimized: without constants there is little to find.

    Raises: UnsupportedError where ONNX Runtime cannot run the model.
    """
    folder = weights_folder(model)
    proto, tensors = stripped_proto(model, keep_in=folder)
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    return feed_session(proto, weights, folder, threads=threads, quiet=quiet)


def feed_session(
    proto: onnx.ModelProto,
    weights: Mapping[str, Array],
    folder: str | None,
    *,
    threads: int = 0,
    quiet: bool = False,
    bounded: bool = False,
) -> FedSession:
    """Do what `open_fed_session` does with what `stripped_proto` gave; `proto` is changed."""
    fed = {name: array for name, array in weights.items() if array.dtype == np.float32}
    _make_inputs(proto.graph, fed)
    session = session_from_bytes(
        proto.SerializeToString(),
        {name: array for name, array in weights.items() if name not in fed},
        threads=threads,
        optimize=False,
        quiet=quiet,
        bounded=bounded,
        folder=folder,
    )
    return FedSession(session, fed)


def _make_inputs(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> None:
    kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    known = {value.name for value in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        for name, array in weights.items()
        if name not in known
    )


def weights_folder(model: ir.Model) -> str | None:
    """Return the folder that the model's external data lies in, None where there is none."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return next((str(t.base_dir) for t in tensors if isinstance(t, ir.ExternalTensor)), None)


def run_session(
    session: ort.InferenceSession,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    *,
    bounded: bool = False,
    limit_s: float | None = None,
) -> dict[str, Array]:
    """Run once; give the outputs by name. `bounded` is as it was when the session was opened.

    Raises: UnsupportedError with ONNX Runtime's words where the run fails; TimeLimitError, one of
    them, where it is not over after `limit_s`; MemoryBoundError where it would pass the bound.
    """
    names = list(outputs) if outputs is not None else [o.name for o in session.get_outputs()]
    options = bounded_run() if bounded else None
    if limit_s is not None:
        options = options or ort.RunOptions()
    try:
        with ended_after(limit_s, options) if limit_s is not None else nullcontext():
            run = run_with_values if needs_values(session, inputs) else _plain_run
            found = run(session, names, inputs, options)
        return dict(zip(names, found, strict=True))
    except Exception as error:  # as above
        if not is_of_the_run(error):
            raise
        check_bound(error)
        if limit_s is not None:
            check_time(error, limit_s)
        raise failed_run(error) from error


def failed_run(error: Exception) -> UnsupportedError:
    """Return the error to raise where ONNX Runtime raised this one while a model ran."""
    words, node = _failure(error)
    return UnsupportedError(
        f"running the model failed: {words}",
        where=node,
        hint="what the node got does not fit it: check the model and its inputs",
    )


def _plain_run(
    session: ort.InferenceSession,
    names: Sequence[str],
    inputs: Mapping[str, Array],
    options: ort.RunOptions | None,
) -> list[Any]:
    found: list[Any] = session.run(names, dict(inputs), options)
    return found


def is_of_the_run(error: Exception) -> bool:
    """Say whether ONNX Runtime raised it, and not the caller's handler of a signal meanwhile."""
    own = type(error).__module__.startswith("onnxruntime")
    return own or type(error) in (RuntimeError, ValueError, TypeError, MemoryError)


def _failure(error: BaseException) -> tuple[str, str]:
    """Return ONNX Runtime's words without its own source lines, and the node that it names."""
    text = first_line(error)
    found = _NODE_FAILED.search(text)
    if found is None:
        return text, ""
    return _SOURCE_LINE.sub("", found["words"]), f"node `{found['name']}`, {found['operator']}"
