"""What a session is opened on, and what is known of it: a bundle, or a model and its bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vermilion.errors import ModelError, UnsupportedError
from vermilion.files import resolved
from vermilion.hardware.targets.find import find_target
from vermilion.ort.asked import Asked
from vermilion.runtime.artifact import ArtifactReader
from vermilion.runtime.cache import Cache
from vermilion.runtime.manifest import TOOLS
from vermilion.runtime.session import NodeArg
from vermilion.store.digest import cache_digest, code_fingerprint, digest_of, fingerprint_of
from vermilion.store.namespaces import MODEL_NOTES

if TYPE_CHECKING:
    import onnx_ir as ir

# Where ONNX Runtime's own format has its name. Source: `ort.fbs`, `file_identifier "ORTM"`.
_ORT_FORMAT = (4, b"ORTM")


@dataclass(frozen=True)
class Source:
    """What `InferenceSession` was given: one of these."""

    bundle: Path | ArtifactReader | None = None
    file: Path | None = None
    data: bytes | None = None

    @property
    def label(self) -> str:
        """What notes call it."""
        if isinstance(self.bundle, ArtifactReader):
            return self.bundle.path.name
        path = self.bundle or self.file
        return path.name if path is not None else "the model"

    @property
    def model(self) -> Path | bytes:
        """The model, of what is no bundle."""
        found = self.file if self.file is not None else self.data
        assert found is not None, "a bundle is opened as it is"
        return found

    @property
    def is_ort_format(self) -> bool:
        """Whether it is a model in ONNX Runtime's own format."""
        if self.file is not None:
            return self.file.suffix == ".ort"
        offset, magic = _ORT_FORMAT
        return self.data is not None and self.data[offset : offset + len(magic)] == magic


def source_of(given: Any) -> Source:
    """Tell a bundle from a model. Raises: TypeError for what is neither, as ONNX Runtime does."""
    if isinstance(given, ArtifactReader):
        return Source(bundle=given)
    if isinstance(given, bytes | bytearray | memoryview):
        return Source(data=bytes(given))
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"a session is opened on a file, a compiled folder or the bytes of a model, not on"
            f" {type(given)}"
        )
    if not (isinstance(name := os.fspath(given), str) and name and "\0" not in name):
        raise TypeError(f"no file can be called {name!r}")
    path = Path(name)
    return Source(bundle=path) if path.is_dir() or path.suffix == ".rai" else Source(file=path)


@dataclass(frozen=True)
class Known:
    """What is known of a model: its bundle, where it is compiled, and what a script may ask.

    `sizes` are what is bound when it is compiled, by dimension; `notes` what was asked and is not.
    `refused` says why it could not be compiled, where that was tried.
    """

    artifact: Path | None
    sizes: Mapping[str, int]
    overridable: tuple[NodeArg, ...]
    notes: tuple[str, ...] = ()
    refused: str = ""


def look_up(source: Source, asked: Asked) -> Known:
    """Return what is known of a model that is no bundle.

    Its file is read where it was not seen before: a note in the cache tells all that is needed.
    Raises: what reading a model raises, but for one that we cannot read: that is `refused`.
    """
    key = note_key(source, asked)
    store = Cache().store
    entry = store.find(MODEL_NOTES, key)
    if entry is not None and all(_looks(name) == seen for name, seen in entry.about["files"]):
        artifact = store.root / str(entry.about["key"])
        if entry.about["refused"] or artifact.is_dir():
            return _from_note(entry.about, artifact)
    try:
        known, files = _read(source, asked)
    except UnsupportedError as error:
        known, files = Known(None, {}, (), refused=error.message), []
    if known.artifact is not None or known.refused:
        _keep(key, _about(known, files))
    return known


def refuse(source: Source, asked: Asked, known: Known, reason: str) -> None:
    """Keep why a model cannot be compiled, so that it is not tried at every opening."""
    from vermilion.ir.load import load_model

    about = _about(replace(known, refused=reason), _weight_files(load_model(source.model)))
    _keep(note_key(source, asked), about)


def _keep(key: str, about: Mapping[str, Any]) -> None:
    """Write a note in the place of one that is no longer true."""
    store = Cache().store
    if store.find(MODEL_NOTES, key) is not None:
        store.remove(MODEL_NOTES, key)
    store.get_or_make(MODEL_NOTES, key, lambda _: about)


def _from_note(about: Mapping[str, Any], artifact: Path) -> Known:
    overridable = tuple(NodeArg(*row) for row in about["overridable"])
    refused = str(about["refused"])
    found = None if refused else artifact
    return Known(found, about["sizes"], overridable, tuple(about["notes"]), refused)


def _about(known: Known, files: Sequence[str]) -> dict[str, Any]:
    return {
        "key": known.artifact.name if known.artifact is not None else "",
        "refused": known.refused,
        "files": [[name, _looks(name)] for name in files],
        "sizes": dict(known.sizes),
        "overridable": [[one.name, one.type, one.shape] for one in known.overridable],
        "notes": list(known.notes),
    }


def _read(source: Source, asked: Asked) -> tuple[Known, list[str]]:
    """Return the same from the model itself, and the files that its weights lie in."""
    from vermilion.api import find_compiled
    from vermilion.ir.load import load_model

    model = load_model(source.model)
    sizes, notes = _sizes(model, asked)
    known = Known(find_compiled(model, dims=sizes), sizes, tuple(_overridable(model)), notes)
    return known, _weight_files(model)


def note_key(source: Source, asked: Asked) -> str:
    """Return the name of what is known of a model: another one where anything has changed."""
    if source.file is not None:
        named = f"{resolved(source.file)} {_looks(str(source.file))}"
    else:
        named = digest_of(source.data or b"")
    target = find_target("cpu")
    return cache_digest(
        {
            "model": named,
            "sizes": repr(sorted(asked.sizes.items())),
            "denotations": repr(sorted(asked.sizes_by_denotation.items())),
            "target": f"{target.name} {sorted(target.features)}",
            "code": code_fingerprint(),
            "tools": _installed(),
        }
    )


def _looks(name: str) -> list[int]:
    """Return what the file system says of a file, nothing where there is none."""
    try:
        return list(fingerprint_of(Path(name).stat()))
    except OSError:
        return []


@cache
def _installed() -> str:
    """Return the versions of the packages that a bundle depends on, by their folders' names.

    Asking `importlib.metadata` takes 60 ms.
    """
    starts = tuple(f"{tool.replace('-', '_')}-" for tool in TOOLS)
    found = set()
    for place in filter(os.path.isdir, sys.path):
        with os.scandir(place) as entries:
            found |= {entry.name for entry in entries if entry.name.startswith(starts)}
    return " ".join(sorted(found))


def _sizes(model: ir.Model, asked: Asked) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes to bind, and what is said of those that the model does not have."""
    from vermilion.ir.passes.bind_dimensions import symbolic_names

    names = symbolic_names(model)
    sizes = {name: size for name, size in asked.sizes.items() if name in names}
    missing = [f"the model has no free dimension `{n}`" for n in asked.sizes if n not in names]
    for denotation, size in asked.sizes_by_denotation.items():
        found = _denoted(model, denotation)
        sizes |= dict.fromkeys(found, size)
        if not found:
            missing.append(f"no named dimension of an input denotes `{denotation}`")
    return sizes, tuple(missing)


def _denoted(model: ir.Model, denotation: str) -> list[str]:
    from vermilion.ir.opset import required_inputs
    from vermilion.ir.passes.bind_dimensions import dimension_name

    found = []
    for value in required_inputs(model):
        shape = value.shape
        for axis, size in enumerate(shape.dims if shape is not None else ()):
            name = dimension_name(size)
            if name and shape is not None and shape.get_denotation(axis) == denotation:
                found.append(name)
    return found


def _overridable(model: ir.Model) -> list[NodeArg]:
    """Return the weights that a run may replace: those that are inputs as well."""
    from vermilion.runtime.write import tensor_record

    records = [tensor_record(value) for value in model.graph.inputs if value.is_initializer()]
    return [NodeArg(one.name, one.type, list(one.shape or ())) for one in records]


def _weight_files(model: ir.Model) -> list[str]:
    import onnx_ir as ir

    tensors = (value.const_value for value in model.graph.initializers.values())
    return sorted({str(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)})


def compiled(source: Source, asked: Asked) -> Path:
    """Return the bundle of a model, compiled or found; `look_up` finds it from now on.

    Processes that want the same model wait before they have loaded anything large.
    Raises: what compiling raises; what is no accident is kept, and raised again at once.
    """
    with Cache().store.locked(f"model-{note_key(source, asked)[:32]}"):
        known = look_up(source, asked)
        if known.refused:
            raise UnsupportedError(known.refused, where=source.label)
        if known.artifact is not None:
            return known.artifact
        from vermilion.api import compile_model

        try:
            artifact = compile_model(source.model, dims=known.sizes).artifact
        except (ModelError, UnsupportedError) as error:
            refuse(source, asked, known, error.message)
            raise
        look_up(source, asked)  # and keep a note of it
    return artifact
