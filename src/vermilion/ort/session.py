"""`InferenceSession`: ONNX Runtime's, on compiled models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from weakref import finalize

from vermilion.errors import OptionError
from vermilion.forks import renew_after_fork
from vermilion.ort.asked import does_not_apply, read_options
from vermilion.ort.engines import Engines, When
from vermilion.ort.providers import CPU, plan_providers
from vermilion.ort.runs import Runs
from vermilion.ort.source import source_of
from vermilion.ort.surface import INFERENCE_SESSION
from vermilion.ort.voice import Voice, also
from vermilion.runtime.session import ModelMetadata, NodeArg

if TYPE_CHECKING:
    from vermilion.ort.binding import IOBinding
    from vermilion.ort.profile import Profile
    from vermilion.ort.providers import AssignedSubgraph

Callback = Callable[[list[Any], Any, str], None]


class InferenceSession:
    """A model ready to run, with the methods of `onnxruntime.InferenceSession`.

    Safe to call from several threads.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        compile: When = "background",
        threads: int = 0,
        verify: bool = True,
        trust_code: bool = False,
        **kwargs: Any,
    ) -> None:
        """Open an ONNX file, its bytes, or what it was compiled to: a folder or a `.rai`.

        Args:
            path_or_bytes: the model; a bundle may be what `open_artifact` gave, too.
            sess_options: `SessionOptions`, ours or ONNX Runtime's.
            providers: names, or pairs of a name and options, as ONNX Runtime takes them. One that
                runs on another device and that ONNX Runtime has makes it run the model.
            provider_options: options of the providers, in their order.
            compile: what happens to a model that is not compiled: `background` has ONNX Runtime
                answer until it is, `now` waits for it.
            threads: of compiled programs; those of `sess_options`, or all cores, by default.
            verify: compare every file of a bundle that is read with its digest.
            trust_code: run a bundle's machine code though it was not made on this machine.
            kwargs: `enable_fallback=0`, and what else ONNX Runtime takes; the rest is named.

        Raises: what ONNX Runtime raises for what cannot be opened; VermilionError where it is
        ours, which is one of ONNX Runtime's errors as well.
        """
        if compile not in ("background", "now"):
            raise OptionError(f"`compile` is `background` or `now`, not `{compile}`")
        self._source = source_of(path_or_bytes)
        self._options, self._keywords, self._when = sess_options, kwargs, compile
        self._asked = read_options(sess_options, kwargs)
        self._bundle_options = {"threads": threads, "verify": verify, "trust_code": trust_code}
        self._fallback = self._asked.enable_fallback
        self._voice = Voice(self._asked.severity, self._asked.log_id)
        self._profile: Profile | None = None
        self._pool: ThreadPoolExecutor | None = None
        if self._asked.is_profiled:
            from vermilion.ort.profile import Profile

            self._profile = Profile(self._asked.profile_prefix)
            finalize(self, self._profile.written)  # as ONNX Runtime does, where nobody ends it
        self._voice.say(*self._asked.notes)
        self._open(providers, provider_options)
        renew_after_fork(self)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Compute the outputs that are named, all where none is, in that order."""
        return self._runs.compute(output_names, input_feed, run_options, fallback=self._fallback)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Run in a thread, and call back with the outputs, `user_data`, and words of an error."""
        self._runs.check_given(input_feed)
        feed = dict(input_feed)

        def work() -> None:
            found, words = [], ""
            try:
                found = self.run(output_names, feed, run_options)
            except Exception as error:  # told to the callback, as ONNX Runtime does
                words = str(error)
            callback(found, user_data, words)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "vermilion-async")
        self._pool.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run with ONNX Runtime's `OrtValue`s, in and out; neither is copied."""
        return self._runs.compute_values(
            output_names, input_dict_ort_values, run_options, fallback=self._fallback
        )

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run with vectors of ONNX Runtime's values: `fetches` gets the outputs."""
        from vermilion.ort.binding import filled

        filled(self, run_options, feed_names, feeds, fetch_names, fetches)

    def io_binding(self) -> IOBinding:
        """Return what binds memory to inputs and outputs."""
        from vermilion.ort.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run with what is bound; outputs are written to their memory without a copy."""
        iobinding.run(self, self._runs, run_options, fallback=self._fallback)

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs' names, types and shapes."""
        return list(self._runs.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs' names, types and shapes."""
        return list(self._runs.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that a run may replace; ONNX Runtime computes such a run."""
        return list(self._runs.overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's own metadata."""
        return self._runs.metadata

    def get_session_options(self) -> Any:
        """Return the options that the session was opened with."""
        from vermilion.ort.options import SessionOptions

        return self._options if self._options is not None else SessionOptions()

    def get_providers(self) -> list[str]:
        """Return what computes now, in order of precedence."""
        return list(self.get_provider_options())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the same with the options that were given."""
        bundle, peer = self._runs.engines.current()
        if bundle is None:
            peer = peer or self._runs.engines.peer()
            found: dict[str, dict[str, str]] = peer.get_provider_options()
            return found
        return {name: {} for name in dict.fromkeys([*bundle.get_providers(), CPU])}

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        """Open the model again with other providers."""
        before = self._runs.engines
        self._open(providers, provider_options)
        before.close()

    def enable_fallback(self) -> None:
        """Let ONNX Runtime compute a run that the compiled program cannot; so it is at first."""
        self._fallback = True

    def disable_fallback(self) -> None:
        """Raise the error of such a run instead."""
        self._fallback = False

    def get_provider_graph_assignment_info(self) -> list[AssignedSubgraph]:
        """Return which nodes run where.

        Raises: OptionError unless the options had `session.record_ep_graph_assignment_info` at 1.
        """
        bundle, peer = self._runs.engines.current()
        if bundle is None:
            peer = peer or self._runs.engines.peer()
            found: list[Any] = peer.get_provider_graph_assignment_info()
            return found
        from vermilion.ort.providers import assigned_subgraphs

        if not self._asked.records_assignment:
            raise also(
                OptionError(
                    "where nodes run was not recorded",
                    hint='add the entry "session.record_ep_graph_assignment_info" = "1"',
                ),
                "Fail",
            )
        return assigned_subgraphs(bundle)

    def get_input_epdevices(self) -> list[Any]:
        """Return ONNX Runtime's device of the CPU for each input: all are its memory."""
        import onnxruntime as ort

        device = next((one for one in ort.get_ep_devices() if one.ep_name == CPU), None)
        return [device for _ in self._runs.inputs]

    def get_input_memory_infos(self) -> list[Any]:
        """Return ONNX Runtime's word for the CPU's memory, for each input."""
        return [_cpu_memory() for _ in self._runs.inputs]

    def get_output_memory_infos(self) -> list[Any]:
        """Return ONNX Runtime's word for the CPU's memory, for each output."""
        return [_cpu_memory() for _ in self._runs.outputs]

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> Any:
        """Return an `OrtValue` of a shape and type, its numbers open."""
        import onnxruntime as ort

        return ort.OrtValue.ortvalue_from_shape_and_type(
            list(shape), element_type, device_type, device_id
        )

    def end_profiling(self) -> str:
        """Write the profile; return the file's name, an empty one where none was asked for."""
        return "" if self._profile is None else self._profile.written()

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, on the clock that ONNX Runtime has; 0 where it did not."""
        return 0 if self._profile is None else self._profile.start_ns

    def get_tuning_results(self) -> list[Any]:
        """Return none: kernels are chosen when a model is compiled."""
        return []

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Use none, and say so."""
        if results:
            self._voice.say(
                does_not_apply("set_tuning_results", INFERENCE_SESSION["set_tuning_results"].words)
            )

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Use none, and say so by name."""
        words = INFERENCE_SESSION["set_ep_dynamic_options"].words
        self._voice.say(*(does_not_apply(name, words) for name in options))

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: no graph of a device is captured, as with ONNX Runtime on the CPU."""

    @property
    def notes(self) -> tuple[str, ...]:
        """All that a user should know: what does not apply, who computes, what was compiled."""
        return self._voice.notes

    @property
    def is_compiled(self) -> bool:
        """Whether a compiled program answers; ONNX Runtime does otherwise."""
        return self._runs.engines.bundle is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the model is compiled, or cannot be; say whether a compiled program answers.

        Units: `timeout` in seconds, for ever where there is none.
        """
        return self._runs.engines.wait(timeout)

    @property
    def runs_on(self) -> list[str]:
        """Where each part runs, and whether that is modelled, in execution order."""
        bundle = self._runs.engines.bundle
        if bundle is None:
            return [f"all: ONNX Runtime ({', '.join(self.get_providers())})"]
        return bundle.runs_on

    def close(self) -> None:
        """Let go of the model; a run afterwards is an error."""
        self._runs.engines.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def after_fork(self) -> None:
        """Let go of the thread of `run_async`: it is not in a forked process."""
        self._pool = None

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self, providers: Any, provider_options: Any) -> None:
        plan = plan_providers(providers, provider_options)
        self._voice.say(*plan.notes)
        engines = Engines(
            self._source, self._asked, plan, self._voice,
            options=self._options, keywords=self._keywords, when=self._when,
            bundle_options=self._bundle_options, profile=self._profile,
        )  # fmt: skip
        self._runs = Runs(engines, self._voice, self._profile)


def _cpu_memory() -> Any:
    import onnxruntime as ort

    kinds = ort.OrtAllocatorType, ort.OrtMemType
    return ort.OrtMemoryInfo("Cpu", kinds[0].ORT_DEVICE_ALLOCATOR, 0, kinds[1].DEFAULT)


Session = InferenceSession
"""The name that scripts of this package's earlier versions use."""
