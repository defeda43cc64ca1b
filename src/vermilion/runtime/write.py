"""Writing the compiled bundle: beside its place first, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from vermilion.backends.base import Array, Part, Program
from vermilion.errors import ArtifactError
from vermilion.files import aside_of, resolved, writing
from vermilion.ir.execute import split_weights
from vermilion.ir.map_types import TYPE_KEY
from vermilion.runtime.archive import write_archive
from vermilion.runtime.artifact import (
    PART_MODEL_FILE,
    SUMMARY_JSON_FILE,
    SUMMARY_TEXT_FILE,
    is_replaceable,
    open_artifact,
)
from vermilion.runtime.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    SIGNATURE_FILE,
    WEIGHTS_FILE,
    Dimension,
    Manifest,
    Member,
    PartRecord,
    TensorRecord,
    now,
    read_manifest,
    sealed,
    tool_versions,
)
from vermilion.runtime.summary import Summary
from vermilion.runtime.weights import WeightsWriter, point_at_weights
from vermilion.store.digest import cache_digest, digest_of, digest_of_file
from vermilion.store.entry import in_use, swap_in


@dataclass(frozen=True)
class CompiledPart:
    """A part, what its backend made of it, and the folder in which the backend left the files."""

    part: Part
    program: Program
    folder: Path

    def weights(self) -> Mapping[str, Array]:
        """Return the tensors that `part.onnx` keeps outside itself, by name."""
        own = self.program.weights
        return split_weights(self.part.model)[1] if own is None else own


@dataclass(frozen=True)
class ArtifactContent:
    """All that goes into a bundle. `parts` are in execution order.

    `nodes` are every node's place (name, op_type, device, reason, hint) for `summary.json`, and
    `extra` is what else stands there.
    `cache_parts` are what the cache key is made of, by name: `model`, `target`, `options`, …
    """

    model: ir.Model
    parts: tuple[CompiledPart, ...]
    target: str
    options: Mapping[str, str]
    cache_parts: Mapping[str, str]
    summary: Summary
    nodes: Sequence[Mapping[str, object]] = ()
    extra: Mapping[str, object] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    tools: Mapping[str, str] = field(default_factory=tool_versions)


def write_artifact(folder: str | os.PathLike[str], content: ArtifactContent) -> Manifest:
    """Write a bundle as a folder: beside its place first, then renamed into it.

    A bundle that is there already is replaced.

    Raises: ArtifactError where the folder holds something else.
    """
    place = Path(folder)
    if place.exists() and not is_replaceable(place):
        raise ArtifactError(
            "the folder holds something that is not a compiled model",
            where=str(place),
            hint="choose a folder that does not exist yet, or empty this one",
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with aside_of(place, ".partial") as aside:
        aside.mkdir()
        manifest = _write_files(aside, content)
        swap_in(aside, place)
    return manifest


def pack(
    folder: str | os.PathLike[str], rai_path: str | os.PathLike[str], *, verify: bool = True
) -> None:
    """Write the folder form as one file: the same bundle, byte for byte the same each time.

    Without `verify` the folder's contents are taken as they are: for whoever has just checked.
    """
    source, place = Path(folder), resolved(rai_path)  # of a link, what it leads to
    if place.is_dir():
        raise ArtifactError(
            "there is a folder of that name", where=str(place), hint="choose another name"
        )
    reader = open_artifact(source, verify=verify)
    signature = (SIGNATURE_FILE,) if (source / SIGNATURE_FILE).is_file() else ()
    members = (member.name for member in reader.manifest.members)
    names = [MANIFEST_FILE, *signature, *members]
    with writing(place, "the bundle"), aside_of(place, ".partial") as aside:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_archive(aside, ((name, source / name) for name in names))
        try:
            aside.replace(place)
        except OSError as error:
            raise in_use(place, error) from error


def tensor_record(value: ir.Value) -> TensorRecord:
    """Describe a graph's input or output."""
    shape = value.shape
    return TensorRecord(
        name=value.name or "",
        type=_type_text(value.type) or value.metadata_props.get(TYPE_KEY, ""),
        shape=None if shape is None else tuple(_dimension(dimension) for dimension in shape),
    )


def _write_files(folder: Path, content: ArtifactContent) -> Manifest:
    members: list[Member] = []
    weights_path = folder / WEIGHTS_FILE
    with weights_path.open("wb") as file:
        writer = WeightsWriter(file)
        serialized, arrays = split_weights(content.model)
        models = {MODEL_FILE: point_at_weights(serialized, arrays, writer)}
        for compiled in content.parts:
            models.update(_part_model(compiled, writer))
    if writer.size:
        members.append(Member(WEIGHTS_FILE, writer.size, writer.sha256))
    else:
        weights_path.unlink()
    for name, data in {**models, **_summary_files(content)}.items():
        members.append(_write(folder, name, data))
    for compiled in content.parts:
        for file_name in compiled.program.files:
            name = f"{compiled.part.name}/{file_name}"
            if name not in models:
                members.append(_copy(folder, name, compiled.folder / file_name))
    data = _manifest(content, tuple(members)).to_json()
    (folder / MANIFEST_FILE).write_bytes(data)
    # Nothing is written that would not be read again: a bad part name shows here, not later.
    return read_manifest(data, str(folder / MANIFEST_FILE))


def _part_model(compiled: CompiledPart, writer: WeightsWriter) -> dict[str, bytes]:
    """Return `part.onnx` with its weights in the shared file, if the part has one."""
    if PART_MODEL_FILE not in compiled.program.files:
        return {}
    serialized = (compiled.folder / PART_MODEL_FILE).read_bytes()
    name = f"{compiled.part.name}/{PART_MODEL_FILE}"
    return {name: point_at_weights(serialized, compiled.weights(), writer)}


def _summary_files(content: ArtifactContent) -> dict[str, bytes]:
    rows = {
        "schema_version": 1,
        **content.summary.as_json(),
        "nodes": [dict(node) for node in content.nodes],
        **content.extra,
    }
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    return {
        SUMMARY_TEXT_FILE: content.summary.to_text().encode(),
        SUMMARY_JSON_FILE: text.encode(),
    }


def _write(folder: Path, name: str, data: bytes) -> Member:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return Member(name, len(data), digest_of(data))


def _copy(folder: Path, name: str, source: Path) -> Member:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, path)
    return Member(name, path.stat().st_size, digest_of_file(path))


def _manifest(content: ArtifactContent, members: tuple[Member, ...]) -> Manifest:
    graph = content.model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    return sealed(
        Manifest(
            digest="",
            created=now(),
            tools=dict(content.tools),
            target=content.target,
            options=dict(content.options),
            features=content.features,
            cache_parts=dict(content.cache_parts),
            cache_digest=cache_digest(content.cache_parts),
            inputs=tuple(tensor_record(value) for value in inputs),
            outputs=tuple(tensor_record(value) for value in graph.outputs),
            parts=tuple(_part_record(compiled) for compiled in content.parts),
            members=members,
        )
    )


def _part_record(compiled: CompiledPart) -> PartRecord:
    graph = compiled.part.model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    return PartRecord(
        name=compiled.part.name,
        device=compiled.part.device,
        backend=compiled.part.backend,
        inputs=tuple(value.name or "" for value in inputs),
        outputs=tuple(value.name or "" for value in graph.outputs),
        files=compiled.program.files,
        operators=len(compiled.part.node_names),
        gops=compiled.part.gops,
        modelled=compiled.program.modelled,
        details=dict(compiled.program.details),
    )


def _type_text(type_: ir.TypeProtocol | None) -> str:
    match type_:
        case None:
            return ""
        case ir.TensorType():
            return f"tensor({type_.dtype.name.lower()})"
        case ir.SparseTensorType():
            return f"sparse_tensor({type_.dtype.name.lower()})"
        case ir.SequenceType():
            return f"seq({_type_text(type_.elem_type)})"
        case ir.OptionalType():
            return f"optional({_type_text(type_.elem_type)})"
        case _:
            return str(type_)


def _dimension(dimension: int | ir.SymbolicDim) -> Dimension:
    if isinstance(dimension, int):
        return dimension if dimension >= 0 else None  # some exporters write -1 for any size
    return None if dimension.value is None else str(dimension.value)
