"""Parts that ONNX Runtime's CPU provider executes: the backend that takes nearly everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from vermilion.backends.base import (
    Array,
    Availability,
    Claim,
    CompileOptions,
    ModelFacts,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.errors import Refusal, UnsupportedError
from vermilion.forks import abandon, renew_after_fork
from vermilion.hardware.targets.target import Target
from vermilion.ir.element_types import numpy_type
from vermilion.ir.execute import (
    failed_run,
    is_of_the_run,
    run_session,
    session_from_bytes,
    split_weights,
)
from vermilion.ir.literal.engine import NOT_OPTIMIZED, is_interpreted, is_numpy
from vermilion.ir.literal.run import check_opens, open_literally
from vermilion.ir.ort_values import needs_values

PART_FILE = "part.onnx"

# In a program's details: how the part is opened. With all optimizations where it is not there.
OPENED = "opened"
LITERAL, INTERPRETED = "literal", "interpreter"

_PROVIDER = "CPUExecutionProvider"
_DEFAULT_DOMAIN = ""
# The domains whose operators ship inside ONNX Runtime.
_DOMAINS = {"": "", "ai.onnx": "", "ai.onnx.ml": "ai.onnx.ml", "com.microsoft": "com.microsoft"}
# The end that ONNX Runtime gives to a kernel's range of operator versions when it is open.
_OPEN_END = 2**31 - 1

VersionRange = tuple[int, int]


class OrtExecutable:
    """A part inside an ONNX Runtime session on the CPU."""

    def __init__(
        self, open_session: Callable[[], ort.InferenceSession], weights: Mapping[str, Array]
    ) -> None:
        """Open a session; a forked process opens another one, for the threads are not there."""
        self._open = open_session
        self._session: ort.InferenceSession | None = open_session()
        # The session may look at these arrays for as long as it lives.
        self._weights = weights
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return f"CPU (ONNX Runtime {ort.__version__})"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        session = self._session
        if session is None:
            session = self._session = self._open()
        return run_session(session, inputs)

    def run_into(self, inputs: Tensors, places: Tensors) -> dict[str, Array]:
        """Compute the same, outputs into `places` where these fit."""
        session = self._session
        if session is None:
            session = self._session = self._open()
        return run_session_into(session, inputs, places)

    def after_fork(self) -> None:
        """Let go of the session in a forked process; the first run opens another one."""
        if self._session is not None:
            abandon(self._session)
            self._session = None


class InterpretedExecutable:
    """A part that ONNX Runtime cannot run, in our interpreter."""

    def __init__(self, serialized: bytes, weights: Mapping[str, Array]) -> None:
        """Put the weights where the part's model says that they are outside of it."""
        self._model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(serialized))
        initializers = self._model.graph.initializers
        for name, array in weights.items():
            stored = initializers[name].const_value
            dtype = None if stored is None else stored.dtype
            initializers[name].const_value = ir.Tensor(array, dtype=dtype, name=name)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return "CPU (interpreter)"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        # Many modules, which nearly nobody needs.
        from vermilion.ir.literal.interpret import interpret

        return interpret(self._model, inputs)


class OrtBackend:
    """ONNX Runtime on the CPU."""

    name = "ort"

    def available(self, target: Target) -> Availability:
        """Say that it can execute here: ONNX Runtime is part of the core install."""
        return Availability(usable=True)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Take a node that the CPU provider has a kernel for, or can write out as simpler ones."""
        if node.domain not in _DOMAINS:
            return Refusal(
                f"ONNX Runtime has no operators of the domain `{node.domain}`",
                hint="rewrite the node with standard operators, or inline the function it calls",
            )
        domain = _DOMAINS[node.domain]
        if domain == _DEFAULT_DOMAIN:
            return _claim_standard(node, facts.opset)
        if (domain, node.op_type) in _kernel_versions():
            return Claim()
        return Refusal(
            f"ONNX Runtime's CPU provider has no `{node.op_type}` in the domain `{domain}`",
            hint="export the model without operators made for another provider",
        )

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write the part's model without its large weights, once something opens it.

        That is ONNX Runtime with its optimizations, or without them where these break the model or
        are not wanted, or else the interpreter; details and notes say which.
        """
        serialized, weights = split_weights(part.model)
        opened, reason = _way_to_open(part, serialized, weights, options)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PART_FILE).write_bytes(serialized)
        if not opened:
            return Program(files=(PART_FILE,))
        note = f"{part.name} {_WORDS[opened]}: {reason}"
        return Program(files=(PART_FILE,), details={OPENED: opened}, notes=(note,))

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> OrtExecutable | InterpretedExecutable:
        """Open a session on the part; its weights stay where they are mapped."""
        weights = files.weights()
        serialized = bytes(files.read(PART_FILE))
        opened = program.details.get(OPENED, "")
        if opened == INTERPRETED:
            return InterpretedExecutable(serialized, weights)
        return OrtExecutable(
            lambda: session_from_bytes(
                serialized,
                weights,
                threads=options.threads,
                optimize=opened != LITERAL,
                quiet=True,
            ),
            weights,
        )


_WORDS = {
    LITERAL: "runs in ONNX Runtime without its optimizations",
    INTERPRETED: "runs in the interpreter, which is slow",
}


def _way_to_open(
    part: Part, serialized: bytes, weights: Mapping[str, Array], options: CompileOptions
) -> tuple[str, str]:
    """Return how the part is to be opened and why; nothing where it opens with optimizations."""
    reason = "with them it gave other numbers"
    if part.name not in options.literal_parts:
        try:
            check_opens(part.model)  # in a child, if it is not certain that it does no harm here
            session_from_bytes(serialized, weights, threads=options.threads, quiet=True)
            # An array that Python cannot be handed does not show before the first run.
            if is_numpy(part.model):
                return "", ""
            reason = "ONNX Runtime's Python has no arrays of the types that enter or leave it"
        except UnsupportedError as error:
            reason = error.message
    engine = open_literally(part.model).engine
    return LITERAL if engine == NOT_OPTIMIZED else INTERPRETED, reason


def _claim_standard(node: ir.Node, opset: int) -> Claim | Refusal:
    op_type = node.op_type
    try:
        schema = onnx.defs.get_schema(op_type, opset, _DEFAULT_DOMAIN)
    except onnx.defs.SchemaError:
        return Refusal(
            f"ONNX has no operator `{op_type}` in opset {opset}",
            hint="check the operator's name and the model's opset",
        )
    ranges = _kernel_versions().get((_DEFAULT_DOMAIN, op_type), ())
    if any(_covers(bounds, schema.since_version) for bounds in ranges):
        return Claim()
    if schema.has_function or schema.has_context_dependent_function:  # type: ignore[attr-defined]
        return Claim()  # ONNX Runtime replaces it by the operators that define it
    if is_interpreted(node, opset):
        return Claim()
    return Refusal(
        f"ONNX Runtime {ort.__version__}'s CPU provider has no kernel for "
        f"`{op_type}`-{schema.since_version}",
        hint="convert the model to an opset that ONNX Runtime supports",
    )


def _covers(bounds: VersionRange, since_version: int) -> bool:
    """Say whether a kernel's versions include an operator version.

    Source: ONNX Runtime `KernelRegistry::VerifyKernelDef`: an open range stands for its first
    version alone, because later versions of the operator may mean something else.
    """
    start, end = bounds
    if end == _OPEN_END:
        return start == since_version
    return start <= since_version <= end


@cache
def _kernel_versions() -> Mapping[tuple[str, str], tuple[VersionRange, ...]]:
    found: defaultdict[tuple[str, str], set[VersionRange]] = defaultdict(set)
    for kernel in ort_state.get_all_opkernel_def():
        if kernel.provider == _PROVIDER:
            domain = _DOMAINS.get(kernel.domain, kernel.domain)
            found[domain, kernel.op_name].add(tuple(kernel.version_range))
    return {key: tuple(sorted(ranges)) for key, ranges in found.items()}


# Booleans, integers, floats: what is bound by its address.
_NUMERIC = "biuf"


def run_session_into(
    session: ort.InferenceSession, inputs: Mapping[str, Array], places: Mapping[str, Array]
) -> dict[str, Array]:
    """Run once, outputs into `places` where these fit; all others are arrays of their own.

    A place fits that lies in one piece, has the output's size where that is declared, and is no
    input's memory.

    Raises: what `run_session` does, and UnsupportedError where an output that is declared open has
    another size than its place.
    """
    outputs = session.get_outputs()
    is_numeric = all(
        isinstance(array, np.ndarray) and array.dtype.kind in _NUMERIC for array in inputs.values()
    )
    are_tensors = all(value.type.startswith("tensor(") for value in outputs)
    if not is_numeric or not are_tensors or needs_values(session, inputs):
        return run_session(session, inputs)
    types = {value.name: value for value in outputs}
    wanted = {
        name: place
        for name, place in places.items()
        if _takes(types[name], place)
        and not any(np.may_share_memory(place, array) for array in inputs.values())
    }
    if not wanted:
        return run_session(session, inputs)
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array).reshape(array.shape))
    for name in types:
        place = wanted.get(name)
        if place is None:
            binding.bind_output(name)
        else:
            binding.bind_output(name, "cpu", 0, place.dtype, place.shape, place.ctypes.data)
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        if not is_of_the_run(error):
            raise
        raise failed_run(error) from error
    made = zip(types, binding.get_outputs(), strict=True)
    return {name: wanted[name] if name in wanted else value.numpy() for name, value in made}


def _takes(output: Any, place: Array) -> bool:
    """Say whether an output may be written to a place, as far as the model declares it."""
    declared = output.shape or ()
    return (
        numpy_type(output.type) == place.dtype
        and place.dtype.kind in _NUMERIC
        and place.flags.c_contiguous
        and place.flags.writeable
        and len(declared) == place.ndim
        and all(
            size == given
            for size, given in zip(declared, place.shape, strict=True)
            if isinstance(size, int)
        )
    )
