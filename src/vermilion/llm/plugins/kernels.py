"""Functions of an operator's object, called on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import KERNEL, call_kernel, load_functions
from vermilion.codegen.tensor import SLACK_BYTES
from vermilion.codegen.workers import aligned_bytes
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.identity import Identity

Array = NDArray[Any]


class Kernels:
    """The loaded code of one operator; it lives as long as this does."""

    def __init__(self, identity: Identity, data: bytes, names: Iterable[str]) -> None:
        """Load the object code.

        Raises: DeviceError for a chip that this machine is not; ArtifactError for code that is
        not this operator's.
        """
        target = find_target(identity.target)
        missing = sorted(target.features - find_target("cpu").features)
        if missing:
            raise DeviceError(
                f"the operator is compiled for {identity.target}: this machine has no"
                f" {', '.join(missing)}",
                hint="compile the operators for `--target cpu`, which is what this machine is",
            )
        try:
            self._functions = load_functions(data, dict.fromkeys(names, KERNEL), isa_of(target))
        except DeviceError as error:
            raise ArtifactError(
                f"the object is not that of {identity.words()}: {error.message}",
                hint="compile the operators again with this version",
            ) from error

    def call(self, name: str, arguments: Sequence[Array], units: int) -> None:
        """Compute all units; each argument is an array in the order of the kernel's."""
        call_kernel(self._functions[name], [array.ctypes.data for array in arguments], units)


def roomy(array: Array) -> Array:
    """Return a copy that is aligned, with room behind it: kernels read whole groups."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of zeros that is aligned, with room behind it."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    made: Array = aligned_bytes(size + SLACK_BYTES)[:size].view(kind).reshape(shape)
    return made
