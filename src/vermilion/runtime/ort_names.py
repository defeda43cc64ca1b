"""The names of an `onnxruntime.InferenceSession`, for scripts that were written for one.

What a bundle can do under such a name works. The rest says in one line what to write instead: a
method that did nothing would let a script believe that something had been set or measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    import onnxruntime as ort

_PLACED = "where a model runs was decided when it was compiled"
_COMPILE = "compile it for another device: `vermilion compile MODEL --target NAME`"
_PROFILE = "measure it with `vermilion bench MODEL --profile FILE`"


class _Runs(Protocol):
    def run(
        self, output_names: Sequence[str] | None, inputs: Mapping[str, object], run_options: Any
    ) -> list[Array]: ...

    def get_providers(self) -> list[str]: ...


class Binding:
    """What `io_binding` gives: arrays in the caller's memory, for inputs and outputs."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self._known = tuple(outputs)
        self._inputs: dict[str, object] = {}
        self._outputs: dict[str, Array | None] = {}
        self._found: list[Array] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Take an input from an array, as it is when the session runs."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Take an input from a value of ONNX Runtime's."""
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
        """Take an input from memory."""
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
        """Ask for an output, and write it to memory where some is named."""
        if name not in self._known:
            raise OptionError(f"the model has no output `{name}`")
        place = None if buffer_ptr is None else _at(device_type, element_type, shape, buffer_ptr)
        self._outputs[name] = place

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output, and write it into a value of ONNX Runtime's."""
        array = ortvalue.numpy()
        self.bind_output(
            name, "cpu", 0, array.dtype, array.shape, ortvalue.data_ptr()
        )  # fmt: skip

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._found)

    def get_outputs(self) -> list[Any]:
        """Return the same as values of ONNX Runtime's."""
        from vermilion.ir.ort_values import ort_value

        return [ort_value(array) for array in self._found]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Return at once: nothing is copied behind the caller's back."""

    def synchronize_outputs(self) -> None:
        """Return at once, as above."""

    def run(self, session: _Runs, run_options: object) -> None:
        """Run a session with what is bound."""
        names = list(self._outputs) or list(self._known)
        self._found = session.run(names, self._inputs, run_options)
        for at, name in enumerate(names):
            place = self._outputs.get(name)
            if place is not None:
                if place.shape != self._found[at].shape:
                    raise OptionError(
                        f"output `{name}` has shape {list(self._found[at].shape)}, its memory is"
                        f" bound as {list(place.shape)}"
                    )
                place[...] = self._found[at]


def _at(device: str, element_type: Any, shape: Sequence[int] | None, address: int) -> Array:
    if device != "cpu" or shape is None:
        raise OptionError(f"memory of `{device}` cannot be bound", hint="bind memory of the CPU")
    dtype = np.dtype(element_type)
    shaped = tuple(int(size) for size in shape)
    facts = {"data": (address, False), "shape": shaped, "typestr": dtype.str, "version": 3}
    holder = type("Memory", (), {"__array_interface__": facts})()
    return np.asarray(holder)


class OrtNames:
    """Methods of an `InferenceSession` beside those that `Session` has of itself."""

    _session_options: Any = None

    def get_overridable_initializers(self) -> list[Any]:
        """Return none: the weights of a bundle are packed, and no input replaces them."""
        return []

    def get_session_options(self) -> ort.SessionOptions:
        """Return the options that the session was opened with; of them threads alone are used."""
        import onnxruntime

        return self._session_options or onnxruntime.SessionOptions()

    def get_provider_options(self: _Runs) -> dict[str, dict[str, str]]:
        """Return no options of what executes the parts: those are in the bundle's manifest."""
        return {name: {} for name in self.get_providers()}

    def set_providers(self: _Runs, providers: Any = None, provider_options: Any = None) -> None:
        """Take the providers that the session has, in any order; another is refused in words."""
        named = [one if isinstance(one, str) else one[0] for one in providers or ()]
        others = set(named) - {*self.get_providers(), "CPUExecutionProvider"}
        if others:
            raise OptionError(f"`{min(others)}` is not set: {_PLACED}", hint=_COMPILE)

    def enable_fallback(self) -> None:
        """Change nothing: no session is opened a second time with other providers."""

    def disable_fallback(self) -> None:
        """Change nothing, as above."""

    def io_binding(self) -> Binding:
        """Return what binds arrays to inputs and outputs."""
        return Binding([output.name for output in self.get_outputs()])  # type: ignore[attr-defined]

    def run_with_iobinding(
        self: _Runs, iobinding: Binding, run_options: object | None = None
    ) -> None:
        """Run with what is bound; the outputs are in the binding."""
        iobinding.run(self, run_options)

    def run_with_ort_values(
        self: _Runs,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: object | None = None,
    ) -> list[Any]:
        """Run with values of ONNX Runtime's, in and out."""
        from vermilion.ir.ort_values import ort_value

        return list(map(ort_value, self.run(output_names, input_dict_ort_values, run_options)))

    def run_async(
        self: _Runs,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, object],
        callback: Callable[[list[Array], Any, str], None],
        user_data: object,
        run_options: object | None = None,
    ) -> None:
        """Run in a thread, and call back with the outputs, `user_data` and words of an error."""

        def work() -> None:
            found, words = [], ""
            try:
                found = self.run(output_names, input_feed, run_options)
            except Exception as error:  # told to the callback, as ONNX Runtime does
                words = str(error)
            callback(found, user_data, words)

        threading.Thread(target=work, name="vermilion-async", daemon=True).start()

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", *_: object
    ) -> Any:
        """Return an empty value of ONNX Runtime's on the CPU."""
        import onnxruntime

        if device_type != "cpu":
            raise OptionError(f"memory of `{device_type}` is not given: {_PLACED}")
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element_type, "cpu")

    def end_profiling(self) -> NoReturn:
        """Say how to profile."""
        raise _instead("end_profiling", _PROFILE)

    def get_profiling_start_time_ns(self) -> NoReturn:
        """Say how to profile."""
        raise _instead("get_profiling_start_time_ns", _PROFILE)

    def get_provider_graph_assignment_info(self) -> NoReturn:
        """Say where the places of nodes are told."""
        raise _instead(
            "get_provider_graph_assignment_info", "see `Session.runs_on`, or `summary.json`"
        )

    def get_input_epdevices(self) -> NoReturn:
        """Say where the devices are told."""
        raise _instead("get_input_epdevices", "see `Session.runs_on`")

    def get_input_memory_infos(self) -> NoReturn:
        """Say what inputs are."""
        raise _instead("get_input_memory_infos", "inputs are numpy arrays on the CPU")

    def get_output_memory_infos(self) -> NoReturn:
        """Say what outputs are."""
        raise _instead("get_output_memory_infos", "outputs are numpy arrays on the CPU")

    def get_tuning_results(self) -> NoReturn:
        """Say that nothing is tuned."""
        raise _instead("get_tuning_results", "nothing is tuned when a bundle is opened")

    def set_tuning_results(self, results: object, *, error_on_invalid: bool = False) -> NoReturn:
        """Say that nothing is tuned."""
        raise _instead("set_tuning_results", "nothing is tuned when a bundle is opened")

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> NoReturn:
        """Say where options go."""
        raise _instead(
            "set_ep_dynamic_options", "give them when compiling: `--provider-option NAME=VALUE`"
        )

    def release_captured_graph(self, graph_annotation_id: int = 0) -> NoReturn:
        """Say how memory is let go of."""
        raise _instead("release_captured_graph", "`Session.close()` lets go of everything")

    def run_with_ortvaluevector(self, *_: object) -> NoReturn:
        """Say what to call."""
        raise _instead("run_with_ortvaluevector", "call `run_with_ort_values`")


def check_run_options(options: object | None) -> None:
    """Take ONNX Runtime's options of a run: how it logs means nothing here.

    Raises: OptionError for anything else, and for a run that is terminated.
    """
    if options is None:
        return
    if type(options).__name__ != "RunOptions":
        raise OptionError("`run_options` are ONNX Runtime's own: give `RunOptions`, or nothing")
    if getattr(options, "terminate", False):
        raise OptionError("the run was terminated by its `run_options`")


def _instead(name: str, hint: str) -> UnsupportedError:
    return UnsupportedError(
        f"`{name}` is ONNX Runtime's own, and a bundle has no such thing", hint=hint
    )
