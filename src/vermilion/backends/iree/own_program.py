"""The programs of GPUs that are not here, executed: IREE's driver on a HIP that interprets them.

Everything of a program runs: its own list of dispatches, its constants, its weights, and the
machine code of every kernel, one instruction at a time. That takes some hundred thousand times as
long as a GPU, so only small parts are executed.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vermilion.amdgpu.interpret import Budget, TooLongError
from vermilion.amdgpu.operands import NotInterpretedError
from vermilion.backends.base import Array, Tensors
from vermilion.backends.iree.any_sizes import AnySizes
from vermilion.backends.iree.emulated_hip import EmulatedHip
from vermilion.backends.iree.parameters import write_weights
from vermilion.backends.iree.signature import Signature
from vermilion.backends.iree.worker import PROGRAM, WEIGHTS
from vermilion.backends.provider.contract import Request
from vermilion.errors import DeviceError, Refusal, UnsupportedError
from vermilion.process.child import ChildError

_WORKER = ("vermilion.backends.iree.worker",)
# IREE takes 128 MiB for what passes between host and device; the rest is for tensors and code.
_MEMORY_BYTES = 384 << 20
_MOST_WEIGHT_BYTES = 48 << 20
# A part of so many operations is executed in a second or two.
MOST_GOPS = 0.005
_MOST_INSTRUCTIONS, _MOST_STEPS = 20_000_000, 150_000
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Executed:
    """What a program computed, and how many instructions of waves that took."""

    outputs: Mapping[str, Array]
    instructions: int
    dispatches: int


def why_not(gops: float, weights: Mapping[str, Array]) -> Refusal | None:
    """Say why programs of such a part are not executed here, None where they are."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return Refusal("the interpreter needs Linux on x86-64")
    if gops > MOST_GOPS:
        return Refusal(f"{1e3 * gops:.1f} million operations are too many for the interpreter")
    if sum(array.nbytes for array in weights.values()) > _MOST_WEIGHT_BYTES:
        return Refusal("its weights are too large for the interpreter")
    return None


def execute(
    program: Path,
    assemblies: Mapping[bytes, str],
    signature: Signature,
    weights: Mapping[str, Array],
    inputs: Tensors,
    linker: Sequence[str],
) -> Executed | Refusal:
    """Execute a program; `assemblies` are its code objects with their text.

    Returns a refusal where an instruction is not known here, or there are too many.

    Raises: DeviceError where the program does what no program may: it goes beyond its memory, or
    waits for ever.
    """
    with ExitStack() as stays:
        folder = Path(tempfile.mkdtemp(prefix="vermilion-"))
        stays.callback(shutil.rmtree, folder, ignore_errors=True)
        budget = Budget(_MOST_INSTRUCTIONS, _MOST_STEPS)
        try:
            hip = EmulatedHip(assemblies, linker, folder, budget, _MEMORY_BYTES)
        except (UnsupportedError, OSError) as error:
            return Refusal(f"the interpreter cannot be set up: {error}")
        stays.callback(hip.stop)
        try:
            outputs = _run(program, signature, weights, inputs, folder)
        except ChildError as error:
            if hip.failed is None:
                return Refusal(f"IREE's driver stopped: {error.message[:200]}")
            if isinstance(hip.failed, NotInterpretedError | TooLongError | UnsupportedError):
                return Refusal(hip.failed.message)
            raise DeviceError(hip.failed.message) from error
        return Executed(outputs, budget.used, hip.dispatches)


def _run(
    program: Path,
    signature: Signature,
    weights: Mapping[str, Array],
    inputs: Tensors,
    folder: Path,
) -> dict[str, Array]:
    name = "program.vmfb"
    shutil.copyfile(program, folder / name)
    places = write_weights(signature.parameters, weights, folder)
    request = Request(
        "hip://0",
        {PROGRAM: name, WEIGHTS: places},
        (),
        (),
        environment={"IREE_HIP_DYLIB_PATH": str(folder)},
    )
    with ExitStack() as stays:
        loaded = AnySizes(
            _WORKER,
            request,
            signature,
            folder,
            stays,
            runs_on="interpreted",
            open_limit_s=_LIMIT_S,
            run_limit_s=_LIMIT_S,
        )
        try:
            return loaded.run(inputs)
        finally:
            loaded.stop()
