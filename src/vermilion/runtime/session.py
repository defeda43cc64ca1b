"""Running a compiled bundle, part by part: the engine of `InferenceSession` and of every verb.

Loads no library of graphs, so that running a compiled model begins at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.backends import backend as backend_named
from vermilion.backends.base import (
    Array,
    Backend,
    CompileOptions,
    Executable,
    Program,
    Tensors,
    WritesInto,
)
from vermilion.errors import ArtifactError, DeviceError, OptionError, OtherSizesError
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.feeds import Feeds, nearest
from vermilion.runtime.manifest import Dimension, PartRecord, TensorRecord
from vermilion.runtime.open_shapes import WholeModel, open_shape_notes
from vermilion.runtime.recompile import runnable

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.runtime.report import Report

_log = logging.getLogger(__name__)

# The name that ONNX Runtime's users know for what executes a backend's parts.
PROVIDERS = {
    "native": "VermilionExecutionProvider",
    "ort": "CPUExecutionProvider",
    "npu_model": "CPUExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "iree": "VermilionIree",
}


@dataclass(frozen=True)
class NodeArg:
    """An input or output, with the fields of ONNX Runtime's `NodeArg`."""

    name: str
    type: str
    shape: list[Dimension]


# What ONNX Runtime gives for a model without a version: `kNoVersion` in its `graph.h`.
NO_VERSION = 2**63 - 1


@dataclass(frozen=True)
class ModelMetadata:
    """The model's own metadata, under ONNX Runtime's names."""

    custom_metadata_map: dict[str, str]
    producer_name: str = ""
    graph_name: str = ""
    graph_description: str = ""
    domain: str = ""
    description: str = ""
    version: int = 0


@dataclass(frozen=True)
class _Step:
    part: PartRecord
    executable: Executable
    dropped: tuple[str, ...]  # tensors that nobody reads after this step
    writes: WritesInto | None = None  # the same executable, where it can; asking takes 10 µs


class Session:
    """An open bundle, ready to run. Safe to call from several threads."""

    def __init__(
        self,
        artifact: str | os.PathLike[str] | ArtifactReader,
        *,
        threads: int = 0,
        verify: bool = True,
        backends: Mapping[str, Backend] | None = None,
        target: Target | None = None,
        trust_code: bool = False,
    ) -> None:
        """Open a folder, a `.rai`, or what `open_artifact` gave.

        `verify` compares every file that is read with the manifest, when it is first read; without
        it, every file but those of weights.
        `backends` replaces those that the parts were compiled by; `target` replaces the one that
        they name. Machine code that was not made on this machine is not run: the model is compiled
        again, and `notes` says so; `trust_code` runs it as it is.
        """
        if threads < 0:
            raise OptionError(f"a session cannot have {threads} threads", hint="0 means all cores")
        reader = (
            artifact
            if isinstance(artifact, ArtifactReader)
            else open_artifact(artifact, verify="as read" if verify else False)
        )
        self.notes: tuple[str, ...] = ()
        if not trust_code:
            reader, self.notes = runnable(reader)
        self.notes += open_shape_notes(reader)
        self.manifest = reader.manifest
        self._reader: ArtifactReader | None = reader
        target = target or _compiled_for(reader)
        _check_features(self.manifest.features, target)
        options = CompileOptions(
            precision=self.manifest.options.get("precision", "auto"), threads=threads
        )
        self._whole: WholeModel | None = None
        self._threads = threads
        self._feeds = Feeds(self.manifest.inputs)
        self._constants = _constant_outputs(reader)
        loaded = [_load(reader, part, backends, target, options) for part in self.manifest.parts]
        self._steps = _with_lifetimes(self.manifest.parts, loaded, self.manifest.outputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        inputs: Mapping[str, object],
        *,
        places: Tensors | None = None,
        is_ended: Callable[[], bool] | None = None,
    ) -> list[Array]:
        """Compute the outputs that are named, all where none is, in that order.

        `places` are arrays that outputs are written into where they fit; what was returned for
        another is an array of its own. `is_ended` is asked before each part.
        Raises: OptionError for wrong inputs or names and for a run that is ended; what the backends
        raise.
        """
        steps = self._steps  # before the question: another thread may close it meanwhile
        if self._reader is None:
            raise OptionError("the session is closed")
        known = [record.name for record in self.manifest.outputs]
        names = list(output_names) if output_names else known
        for name in names:
            if name not in known:
                raise OptionError(
                    f"the model has no output `{name}`", hint=nearest(name, known, "output")
                )
        tensors = self._feeds.checked(inputs)
        tensors.update(self._constants)
        for step in steps:
            if is_ended is not None and is_ended():
                raise OptionError("the run was terminated by its `run_options`")
            try:
                tensors.update(_run_step(step, tensors, places))
            except OtherSizesError as error:
                return self._run_whole(names, inputs, error)
            for name in step.dropped:
                del tensors[name]
        return [tensors[name] for name in names]

    def _run_whole(
        self, names: Sequence[str], inputs: Mapping[str, object], reason: OtherSizesError
    ) -> list[Array]:
        """Run the model in ONNX Runtime, at sizes that a part of it is not compiled for."""
        reader, whole = self._reader, self._whole
        if reader is None:
            raise OptionError("the session is closed")
        if whole is None:
            self._whole = whole = WholeModel(reader, self._threads)
            note = f"ONNX Runtime runs the model at some sizes: {reason.message}"
            _log.warning(note)  # who opened the session has read its notes before
            self.notes += (note,)
        return whole.run(names, self._feeds.checked(inputs))

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs' names, types and shapes."""
        return [_info(record) for record in self.manifest.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs' names, types and shapes."""
        return [_info(record) for record in self.manifest.outputs]

    def get_providers(self) -> list[str]:
        """Return what executes the parts, without doubles, in order of first use."""
        names = (PROVIDERS.get(part.backend, part.backend) for part in self.manifest.parts)
        return list(dict.fromkeys(names))

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's own metadata."""
        if self._reader is None:
            raise OptionError("the session is closed")
        model = self._reader.proto
        return ModelMetadata(
            dict(self._reader.metadata), model.producer_name, model.graph.name,
            model.graph.doc_string, model.domain, model.doc_string,
            model.model_version if model.HasField("model_version") else NO_VERSION,
        )  # fmt: skip

    def model(self) -> ir.Model:
        """Return the model that the bundle was compiled from; large weights stay mapped."""
        if self._reader is None:
            raise OptionError("the session is closed")
        return self._reader.model()

    def report(self) -> Report:
        """Return all that compiling had to say."""
        if self._reader is None:
            raise OptionError("the session is closed")
        from vermilion.runtime.report import read_report

        return read_report(self._reader)

    @property
    def placement(self) -> str:
        """Say in one line how many operators are native, and why the rest is not."""
        from vermilion.runtime.placement_line import bundle_line

        if self._reader is None:
            raise OptionError("the session is closed")
        return bundle_line(self._reader)

    @property
    def runs_on(self) -> list[str]:
        """Where each part runs, and whether that is modelled, in execution order."""
        return [f"{step.part.name}: {step.executable.runs_on}" for step in self._steps]

    def close(self) -> None:
        """Let go of the parts and of the bundle's files."""
        self._reader = None
        self._steps = ()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _load(
    reader: ArtifactReader,
    part: PartRecord,
    backends: Mapping[str, Backend] | None,
    target: Target,
    options: CompileOptions,
) -> Executable:
    if backends is None:
        backend = backend_named(part.backend)
    elif part.backend in backends:
        backend = backends[part.backend]
    else:
        raise ArtifactError(
            f"part `{part.name}` was compiled by `{part.backend}`, which is not among the backends",
            where=str(reader.path),
        )
    available = backend.available(target)
    if not available.usable:
        raise DeviceError(
            f"part `{part.name}` cannot run here: {available.reason}",
            where=str(reader.path),
            hint=available.hint,
        )
    program = Program(part.files, part.modelled, dict(part.details))
    return backend.load(program, reader.part(part.name), target, options)


def _run_step(step: _Step, tensors: Tensors, places: Tensors | None) -> Tensors:
    given = {name: tensors[name] for name in step.part.inputs}
    wanted = {name: places[name] for name in step.part.outputs if name in places} if places else {}
    if wanted and step.writes is not None:
        made = step.writes.run_into(given, wanted)
    else:
        made = step.executable.run(given)
    missing = [name for name in step.part.outputs if name not in made]
    if missing:
        raise ArtifactError(
            f"part `{step.part.name}` did not make `{missing[0]}`, which the manifest says it does",
            hint="the bundle is damaged: compile the model again",
        )
    return {name: made[name] for name in step.part.outputs}


def _with_lifetimes(
    parts: Sequence[PartRecord], loaded: Sequence[Executable], outputs: Sequence[TensorRecord]
) -> tuple[_Step, ...]:
    """Pair parts and executables; each tensor is dropped after the last part that reads it."""
    last_use: dict[str, int] = {}
    for at, part in enumerate(parts):
        for name in (*part.outputs, *part.inputs):
            last_use[name] = at
    for record in outputs:
        last_use.pop(record.name, None)
    return tuple(
        _Step(
            part,
            executable,
            tuple(name for name, last in last_use.items() if last == at),
            executable if isinstance(executable, WritesInto) else None,
        )
        for at, (part, executable) in enumerate(zip(parts, loaded, strict=True))
    )


def _constant_outputs(reader: ArtifactReader) -> dict[str, Array]:
    """Return the outputs that are weights of the model: no part makes them."""
    manifest = reader.manifest
    made = {record.name for record in manifest.inputs}
    made.update(name for part in manifest.parts for name in part.outputs)
    missing = [record.name for record in manifest.outputs if record.name not in made]
    if not missing:
        return {}
    initializers = reader.model().graph.initializers
    found: dict[str, Array] = {}
    for name in missing:
        value = initializers.get(name)
        if value is None or value.const_value is None:
            raise ArtifactError(
                f"no part makes the output `{name}`",
                where=str(reader.path),
                hint="the bundle is damaged: compile the model again",
            )
        found[name] = value.const_value.numpy()
    return found


def _compiled_for(reader: ArtifactReader) -> Target:
    """Return the target that the bundle names; a bundle that names no such thing is at fault."""
    try:
        return find_target(reader.manifest.target)
    except OptionError as error:
        raise ArtifactError(
            f"the bundle was compiled for `{reader.manifest.target}`, which is not known here",
            where=str(reader.path),
            hint="compile the model again with this version",
        ) from error


def _check_features(needed: Sequence[str], target: Target) -> None:
    """Refuse machine code that this processor does not have the instructions for."""
    if not needed:
        return
    missing = sorted(set(needed) - detect_cpu().features)
    if missing:
        raise DeviceError(
            f"the bundle was compiled for {target.title}; this machine has no {', '.join(missing)}",
            hint="compile the model again on this machine, or for a target that it is",
        )


def _info(record: TensorRecord) -> NodeArg:
    return NodeArg(record.name, record.type, list(record.shape or ()))


@dataclass(frozen=True)
class BundleRunner:
    """How a bundle runs. `modelled` says that a device is imitated, and its time means nothing.

    `placement` says in one line how many operators are native.
    """

    runs_on: str
    run: Callable[[Mapping[str, Array]], dict[str, Array]]
    modelled: bool
    notes: tuple[str, ...]
    placement: str


def is_artifact(path: Path) -> bool:
    """Say whether `path` is a compiled bundle: a folder or a `.rai`."""
    return path.is_dir() or path.suffix == ".rai"


def open_bundle_runner(artifact: Path, *, threads: int = 0) -> BundleRunner:
    """Open a bundle to run it as it is compiled."""
    session = Session(artifact, threads=threads)
    names = [output.name for output in session.get_outputs()]

    def run(given: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, given), strict=True))

    places = sorted({place.partition(": ")[2] for place in session.runs_on})
    modelled = any(part.modelled for part in session.manifest.parts)
    return BundleRunner("; ".join(places), run, modelled, session.notes, session.placement)
