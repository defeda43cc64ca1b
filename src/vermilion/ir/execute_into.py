"""A run of ONNX Runtime's that writes outputs into memory of the caller's, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from vermilion.ir.element_types import numpy_type
from vermilion.ir.execute import Array, failed_run, is_of_the_run, run_session
from vermilion.ir.ort_values import needs_values

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
