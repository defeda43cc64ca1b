"""A compiled model as ONNX Runtime opens it: native parts as EPContext nodes, all else as it was.

The nodes are what our plugin execution provider runs (`clib/source/ep.c`). Each names a compiled
model of native parts alone and one part in it: a `.rai` beside the model (`embed_mode` 0), or bytes
in the node (1). Source: ONNX Runtime, "OnnxRuntime EP Context Cache Feature Design".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import onnx
import onnx_ir as ir

from vermilion.backends.ort import INTERPRETED, LITERAL, OPENED
from vermilion.clib.library import PROVIDER
from vermilion.errors import ArtifactError, OptionError
from vermilion.files import resolved
from vermilion.runtime.archive import write_archive
from vermilion.runtime.artifact import KIND, ArtifactReader, open_artifact
from vermilion.runtime.manifest import (
    MANIFEST_FILE,
    MODEL_FILE,
    SIGNATURE_FILE,
    Manifest,
    Member,
    PartRecord,
    TensorRecord,
    sealed,
)
from vermilion.runtime.write import tensor_record
from vermilion.store.digest import digest_of
from vermilion.store.ed25519 import SigningKey
from vermilion.version import VERSION

NATIVE_BACKEND, CPU_BACKEND = "native", "ort"
OPERATOR, DOMAIN = "EPContext", "com.microsoft"
CONTEXT = "ep_cache_context"
# A protobuf message has less than 2 GiB; 16 MiB are for what is not a context.
_MOST_EMBEDDED_BYTES = (1 << 31) - (16 << 20)
# Weights of nodes that are not native: where they are larger, they lie in a file of their own.
_MOST_INNER_BYTES = 64 << 20


@dataclass(frozen=True)
class EpContext:
    """What was written: `path` is the model, `files` all of it, `parts` the nodes of ours in it.

    `notes` say where ONNX Runtime does otherwise than our session.
    """

    path: Path
    files: tuple[Path, ...]
    parts: int
    notes: tuple[str, ...] = ()


def write_ep_context(
    bundle: Path, path: Path, *, embed: bool = False, key: SigningKey | None = None
) -> EpContext:
    """Write a bundle that is a folder as a model for ONNX Runtime.

    With `embed`, machine code and weights lie in the model, else in a `.rai` beside it; `key` signs
    them.

    Raises: OptionError for what does not fit into one model, ArtifactError where nothing can be
    written.
    """
    reader = open_artifact(bundle, verify=False)
    model = reader.model()
    parts = [part for part in reader.manifest.parts if part.backend == NATIVE_BACKEND]
    beside = path.with_suffix(".rai")
    for part in parts:
        _replace_nodes(model.graph, part, beside.name, reader.manifest.target, embed=embed)
    _drop_unused_weights(model.graph)
    model.opset_imports.setdefault(DOMAIN, 1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            files = _write_files(Path(folder), reader, model, parts, path, embed=embed, key=key)
            for name in files:
                (Path(folder) / name).replace(path.parent / name)
    except OSError as error:
        raise ArtifactError(
            f"the model cannot be written: {error.strerror or error}",
            where=str(path),
            hint="choose a folder that you may write to, with room for it",
        ) from error
    notes = tuple(_notes(reader.manifest.parts))
    return EpContext(path, tuple(path.parent / name for name in files), len(parts), notes)


def checked_ep_context(
    path: str | os.PathLike[str] | None, kind: str, taken: Sequence[object] = ()
) -> Path | None:
    """Return where the model goes; `taken` are the files of the model and of what else is written.

    Raises: OptionError for another ending or kind of target, and for a file that is taken.
    """
    if path is None:
        return None
    if kind != "cpu":
        raise OptionError(
            "an EPContext model holds machine code of a CPU",
            where="--ep-context",
            hint="compile for a CPU, or run the compiled model with `vermilion.InferenceSession`",
        )
    if Path(path).suffix != ".onnx":
        raise OptionError(
            f"the model `{path}` does not end in .onnx",
            where="--ep-context",
            hint="name it `NAME_ctx.onnx`, as ONNX Runtime does",
        )
    mine = {resolved(path), resolved(Path(path).with_suffix(".rai"))}
    for other in taken:
        if isinstance(other, str | os.PathLike) and resolved(other) in mine:
            raise OptionError(
                f"it would replace `{other}`",
                where=f"--ep-context {path}",
                hint="name it `NAME_ctx.onnx`; what it needs lies beside it in `NAME_ctx.rai`",
            )
    return Path(path)


def _notes(parts: Sequence[PartRecord]) -> Iterator[str]:
    """Yield what of the rest is not as in our session, and that there is nothing native."""
    for part in parts:
        opened = part.details.get(OPENED, "") if part.backend == CPU_BACKEND else ""
        if opened == LITERAL:
            yield (
                f"{part.name}: optimized by ONNX Runtime it gave other numbers or did not run; "
                "open the model with ORT_DISABLE_ALL"
            )
        elif opened == INTERPRETED:
            yield (
                f"{part.name}: ONNX Runtime does not run all of it, which our interpreter does: "
                "it may refuse the model"
            )
    if not any(part.backend == NATIVE_BACKEND for part in parts):
        yield "no part is native: the model has no node of ours"


def _replace_nodes(
    graph: ir.Graph, part: PartRecord, file: str, target: str, *, embed: bool
) -> None:
    """Put one node into the place of all that a part computes."""
    values = _values(graph)
    old = [values[name] for name in part.outputs]
    inner = _nodes_between(old, set(part.inputs))
    attributes = [
        ir.AttrInt64("main_context", 1),
        ir.AttrInt64("embed_mode", int(embed)),
        ir.AttrString(CONTEXT, file),
        ir.AttrString("ep_sdk_version", VERSION),
        ir.AttrString("hardware_architecture", target),
        ir.AttrString("partition_name", part.name),
        ir.AttrString("source", PROVIDER),
    ]
    made = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in old]
    node = ir.Node(
        DOMAIN,
        OPERATOR,
        [values[name] for name in part.inputs],
        attributes,
        outputs=made,
        name=part.name,
    )
    graph.append(node)
    new = dict(zip(old, made, strict=True))
    for before, after in new.items():
        for use in tuple(before.uses()):
            if use.node not in inner:
                use.node.replace_input_with(use.idx, after)
    for at, value in enumerate(graph.outputs):
        if value in new:
            graph.outputs[at] = new[value]
    graph.remove(inner, safe=True)
    graph.sort()


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    found = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        found.update({value.name or "": value for value in node.outputs})
    return found


def _nodes_between(outputs: Sequence[ir.Value], inputs: set[str]) -> set[ir.Node]:
    """Return the nodes that make the outputs out of the inputs."""
    found: set[ir.Node] = set()
    left = [node for value in outputs if (node := value.producer()) is not None]
    while left:
        node = left.pop()
        if node in found:
            continue
        found.add(node)
        for value in node.inputs:
            if value is not None and value.name not in inputs:
                producer = value.producer()
                if producer is not None:
                    left.append(producer)
    return found


def _drop_unused_weights(graph: ir.Graph) -> None:
    kept = {value.name for value in (*graph.outputs, *graph.inputs)}
    for name, value in list(graph.initializers.items()):
        if not value.uses() and name not in kept:
            del graph.initializers[name]


def _write_files(
    folder: Path,
    reader: ArtifactReader,
    model: ir.Model,
    parts: Sequence[PartRecord],
    path: Path,
    *,
    embed: bool,
    key: SigningKey | None,
) -> list[str]:
    """Write all files into an empty folder; return their names, the model's last."""
    names = []
    weights = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    if weights > _MOST_INNER_BYTES:
        names.append(f"{path.name}.data")
        ir.save(model, folder / path.name, external_data=names[0])
        proto = onnx.load(str(folder / path.name), load_external_data=False)
    else:
        proto = ir.to_proto(model)
    if embed:
        _embed(folder, reader, proto, parts, key)
    elif parts:
        names.append(path.with_suffix(".rai").name)
        _write_parts(folder / names[-1], reader, proto, parts, key)
    (folder / path.name).write_bytes(proto.SerializeToString(deterministic=True))
    return [*names, path.name]


def _embed(
    folder: Path,
    reader: ArtifactReader,
    proto: onnx.ModelProto,
    parts: Sequence[PartRecord],
    key: SigningKey | None,
) -> None:
    """Put a compiled model of one part into each node."""
    nodes = {node.name: node for node in proto.graph.node if node.op_type == OPERATOR}
    skeleton = onnx.ModelProto.FromString(proto.SerializeToString())
    total = 0
    for part in parts:
        file = folder / "part.rai"
        _write_parts(file, reader, skeleton, [part], key)
        total += file.stat().st_size
        if total > _MOST_EMBEDDED_BYTES:
            raise OptionError(
                "the machine code and its weights are too large for one model",
                where=f"{total / 1e9:.1f} GB, a model takes less than 2.1 GB",
                hint="leave out `--ep-context-embed`",
            )
        for attribute in nodes[part.name].attribute:
            if attribute.name == CONTEXT:
                attribute.s = file.read_bytes()
        file.unlink()


def _write_parts(
    file: Path,
    reader: ArtifactReader,
    proto: onnx.ModelProto,
    parts: Sequence[PartRecord],
    key: SigningKey | None,
) -> None:
    """Write a compiled model of native parts alone.

    Its `model.onnx` has their nodes and no weights: there is nothing to compile again from.
    """
    made = {name for part in parts for name in part.outputs}
    wanted = list(dict.fromkeys(name for part in parts for name in part.inputs if name not in made))
    skeleton = _skeleton(proto, parts, wanted)
    listed = {f"{part.name}/{name}" for part in parts for name in part.files}
    members = tuple(member for member in reader.manifest.members if member.name in listed)
    model_member = Member(MODEL_FILE, len(skeleton), digest_of(skeleton))
    manifest = _manifest(reader.manifest, proto, parts, wanted, (model_member, *members))
    data = manifest.to_json()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        own = {MANIFEST_FILE: data}
        if key is not None:
            own[SIGNATURE_FILE] = key.signature_of(KIND, sha256(data).hexdigest())
        own[MODEL_FILE] = skeleton
        sources = []
        for name, content in own.items():
            (Path(folder) / name).write_bytes(content)
            sources.append((name, Path(folder) / name))
        sources += [(member.name, reader.path / member.name) for member in members]
        write_archive(file, sources)


def _manifest(
    whole: Manifest,
    proto: onnx.ModelProto,
    parts: Sequence[PartRecord],
    wanted: Sequence[str],
    members: tuple[Member, ...],
) -> Manifest:
    known = _described(proto)

    def records(names: Sequence[str]) -> tuple[TensorRecord, ...]:
        return tuple(
            tensor_record(ir.serde.deserialize_value_info_proto(known[name], None))
            for name in names
        )

    return sealed(
        replace(
            whole,
            inputs=records(wanted),
            outputs=records([name for part in parts for name in part.outputs]),
            parts=tuple(parts),
            members=members,
        )
    )


def _skeleton(proto: onnx.ModelProto, parts: Sequence[PartRecord], wanted: Sequence[str]) -> bytes:
    known = _described(proto)
    names = {part.name for part in parts}
    nodes = [node for node in proto.graph.node if node.op_type == OPERATOR and node.name in names]
    graph = onnx.helper.make_graph(
        nodes,
        proto.graph.name or "parts",
        [known[name] for name in wanted],
        [known[name] for part in parts for name in part.outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=list(proto.opset_import))
    model.ir_version = proto.ir_version
    return bytes(model.SerializeToString(deterministic=True))


def _described(proto: onnx.ModelProto) -> Mapping[str, onnx.ValueInfoProto]:
    graph = proto.graph
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
