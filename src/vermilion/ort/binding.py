"""`IOBinding`: memory of the caller's as inputs and outputs; nothing is copied on the way."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import OptionError
from vermilion.ort.voice import also

if TYPE_CHECKING:
    from vermilion.ort.runs import Runs
    from vermilion.runtime.session import NodeArg


class Session(Protocol):
    """What a binding asks of its session."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that may be replaced."""

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run with what is bound."""


class IOBinding:
    """What is bound to a session's inputs and outputs, with the methods of ONNX Runtime's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        # An array to write to, None for one that the session makes.
        self._outputs: dict[str, Array | None] = {}
        self._given: dict[str, Any] = {}  # values that were bound as outputs
        self._found: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Take an input from an array, as it is when the session runs."""
        self._check_input(name)
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Take an input from an `OrtValue`."""
        self._check_input(name)
        self._inputs[name] = ortvalue

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Take an input from memory of the CPU."""
        self._check_input(name)
        self._inputs[name] = _at(device_type, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, and have it written to memory where some is named."""
        known = [value.name for value in self._session.get_outputs()]
        if name not in known:
            raise also(OptionError(f"the model has no output `{name}`"), "RuntimeError")
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise ValueError("memory for an output is bound with its `element_type` and `shape`")
        self._given.pop(name, None)
        if buffer_ptr is None:
            _check_device(device_type)
            self._outputs[name] = None
        else:
            self._outputs[name] = _at(device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output, and have it written into an `OrtValue`."""
        array = ortvalue.numpy()
        self.bind_output(name, "cpu", 0, array.dtype, array.shape, ortvalue.data_ptr())
        self._given[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Return at once: memory of the CPU is there."""

    def synchronize_outputs(self) -> None:
        """Return at once, as above."""

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as `OrtValue`s, in the order of binding."""
        names = list(self._outputs)
        return [
            self._given.get(name) or _value_of(name, array)
            for name, array in zip(names, self._found, strict=False)
        ]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the same as ONNX Runtime's vector."""
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        vector = state.OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._ortvalue)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays that the next run does not change."""
        return [np.array(one) if isinstance(one, np.ndarray) else one for one in self._found]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()
        self._given.clear()
        self._found = []

    def run(self, session: Session, runs: Runs, run_options: Any, *, fallback: bool) -> None:
        """Run a session with what is bound.

        Raises: ValueError for another session than its own; RuntimeError for all else that is
        wrong with what is bound, as ONNX Runtime does.
        """
        if session is not self._session:
            raise ValueError("a binding runs on the session that made it")
        if not self._outputs:
            raise RuntimeError("at least one output has to be bound")
        places = {name: place for name, place in self._outputs.items() if place is not None}
        names = list(self._outputs)
        try:
            found = runs.compute(names, self._inputs, run_options, places, fallback=fallback)
        except OptionError as error:
            raise also(error, "RuntimeError") from error
        for at, name in enumerate(names):
            place = places.get(name)
            if place is None or found[at] is place:
                continue
            if place.shape != found[at].shape or place.dtype != found[at].dtype:
                raise RuntimeError(
                    f"output `{name}` is {found[at].dtype} of shape {list(found[at].shape)}, its"
                    f" memory is bound as {place.dtype} of {list(place.shape)}"
                )
            place[...] = found[at]
            found[at] = place
        self._found = found

    def _check_input(self, name: str) -> None:
        values = (*self._session.get_inputs(), *self._session.get_overridable_initializers())
        if name not in [value.name for value in values]:
            raise RuntimeError(f"the model has no input `{name}`")


def filled(
    session: Session,
    run_options: Any,
    feed_names: Sequence[str],
    feeds: Any,
    fetch_names: Sequence[str],
    fetches: Any,
) -> None:
    """Run with ONNX Runtime's vectors: add outputs to `fetches`, or write into what is there."""
    import onnxruntime as ort

    given = {name: ort.OrtValue(one) for name, one in zip(feed_names, feeds, strict=True)}
    binding = IOBinding(session)
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    has_places = len(fetches) > 0
    for at, name in enumerate(fetch_names):
        if has_places:
            binding.bind_ortvalue_output(name, ort.OrtValue(fetches[at]))
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding, run_options)
    if not has_places:
        for value in binding.get_outputs():
            fetches.push_back(value._ortvalue)


def _value_of(name: str, found: Any) -> Any:
    """Return an output as an `OrtValue` of its own. Raises: RuntimeError for text and sequences."""
    from vermilion.ir.ort_values import owned_value

    if isinstance(found, np.ndarray) and found.dtype.kind not in "OSU":
        return owned_value(found)
    raise also(
        OptionError(
            f"output `{name}` is text or a sequence, which no `OrtValue` is made of here",
            hint="`copy_outputs_to_cpu()` returns it",
        ),
        "RuntimeError",
    )


def _check_device(device: str) -> None:
    if device != "cpu":
        raise also(
            OptionError(f"memory of `{device}` cannot be bound", hint="bind memory of the CPU"),
            "RuntimeError",
        )


def _at(device: str, element_type: Any, shape: Sequence[int] | None, address: int) -> Array:
    """Return an array over memory of the caller's.

    Raises: RuntimeError for an address or sizes that no memory has, TypeError for what is none.
    """
    _check_device(device)
    dtype = _dtype(element_type)
    sizes = tuple(index(size) for size in shape or ())
    if index(address) <= 0 or any(size < 0 for size in sizes):
        raise also(
            OptionError(
                f"there is no memory of shape {list(sizes)} at the address {address}",
                hint="give `array.shape` and `array.ctypes.data`",
            ),
            "RuntimeError",
        )
    facts = {"data": (address, False), "shape": sizes, "typestr": dtype.str, "version": 3}
    found = np.asarray(type("Memory", (), {"__array_interface__": facts})())
    return found if found.dtype == dtype else found.view(dtype)


def _dtype(element_type: Any) -> Any:
    """Return the data type of numpy's or ONNX's name of it; a number is ONNX's."""
    if isinstance(element_type, int):
        from onnx.helper import tensor_dtype_to_np_dtype

        try:
            return np.dtype(tensor_dtype_to_np_dtype(element_type))
        except KeyError as error:
            words = f"ONNX has no element type of the number {element_type}"
            raise also(OptionError(words), "RuntimeError") from error
    return np.dtype(element_type)
