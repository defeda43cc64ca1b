"""The door: a file from outside becomes a graph, or one clear error. Nothing is executed.

Weights in external files are memory-mapped, so a model over 2 GB is loaded without a copy.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.verify import check_graph

# protobuf refuses messages of 2 GiB and more; larger models keep their weights outside.
MAX_PROTO_BYTES = 2**31 - 1
# No tensor that fits a machine has more elements than this; guards the arithmetic on sizes.
MAX_ELEMENTS = 2**40

_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc"}

# First bytes of formats that people hand over by mistake, and what each is.
_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x80\x02", "a Python pickle", "a pickle runs code when opened; export the model to ONNX"),
    (0, b"\x80\x03", "a Python pickle", "a pickle runs code when opened; export the model to ONNX"),
    (0, b"\x80\x04", "a Python pickle", "a pickle runs code when opened; export the model to ONNX"),
    (0, b"\x80\x05", "a Python pickle", "a pickle runs code when opened; export the model to ONNX"),
    (0, b"GGUF", "a GGUF language model", "GGUF models are built with `vermilion llm`"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it with `tf2onnx --tflite`"),
    (4, b"ORTM", "an ONNX Runtime `.ort` model", "use the `.onnx` file it was made from"),
    (0, b"\x89HDF", "a Keras or HDF5 file", "export the model to ONNX with `tf2onnx`"),
    (0, b"\x93NUMPY", "a NumPy array", "pass arrays with `--input`, and an ONNX model here"),
    (0, b"\x7fELF", "a program or library", "pass an ONNX model"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (0, b"<?xml", "an XML file (OpenVINO keeps its graphs so)", "export the model to ONNX"),
    (0, b"<!DOCTYPE", "a web page", "the download failed; fetch the file again"),
    (0, b"<html", "a web page", "the download failed; fetch the file again"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model", "run `git lfs pull`"),
    (8, b'{"', "a safetensors file", "it has weights and no graph; export the model to ONNX"),
)


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX model and check everything about it that can be checked without running it.

    Raises: OptionError if there is no such file; ModelError if the file is not a sound model;
    UnsupportedError if it needs operators that nobody here knows.
    """
    file = Path(path)
    where = str(file)
    proto = _parse(file, where)
    _check_proto(proto, where)
    base = file.parent.resolve()
    for tensor in _all_tensors(proto.graph):
        _check_tensor(tensor, base, where)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the library raises what it meets: ValueError, KeyError, …
        raise ModelError(
            f"the graph cannot be read: {str(error).splitlines()[0] if str(error) else error!r}",
            where=where,
            hint="check the file with `python -m onnx.checker`, or export it again",
        ) from error
    ir.external_data.set_base_dir(model.graph, base)
    try:
        check_graph(model)
    except ModelError as error:
        place = f"{where}, {error.where}" if error.where else where
        raise ModelError(error.message, where=place, hint=error.hint) from error
    _check_domains(model, where)
    return model


def _parse(file: Path, where: str) -> onnx.ModelProto:
    try:
        info = file.stat()
    except OSError as error:
        raise OptionError(
            f"no such model: {error.strerror or error}", where=where, hint="check the path"
        ) from error
    if stat.S_ISDIR(info.st_mode):
        raise OptionError(
            "this is a folder, an ONNX file was expected", where=where, hint="name the `.onnx` file"
        )
    if not stat.S_ISREG(info.st_mode):
        raise OptionError("this is not a regular file", where=where)
    if info.st_size == 0:
        raise ModelError("the file is empty", where=where, hint="export or download it again")
    with file.open("rb") as stream:
        head = stream.read(64)
        _refuse_foreign(head, file, where)
        if info.st_size > MAX_PROTO_BYTES:
            raise ModelError(
                f"the file has {info.st_size:,} bytes; an ONNX file ends at 2 GiB",
                where=where,
                hint="save it with external data: `onnx.save(..., save_as_external_data=True)`",
            )
        serialized = head + stream.read()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(serialized)
    except DecodeError as error:
        raise ModelError(
            "this is not an ONNX model, or it is cut short or nested too deep",
            where=where,
            hint="check that the file is complete (compare its size with the original)",
        ) from error
    return proto


def _refuse_foreign(head: bytes, file: Path, where: str) -> None:
    for offset, magic, what, hint in _FOREIGN:
        if head[offset : offset + len(magic)] == magic:
            raise ModelError(f"this is {what}, not an ONNX model", where=where, hint=hint)
    if head.startswith(b"PK\x03\x04"):
        if file.suffix == ".rai":
            what, hint = "a compiled bundle", "`vermilion run` takes it; here the `.onnx` is needed"
        else:
            what = "a ZIP archive (PyTorch checkpoints are such)"
            hint = "`vermilion export` turns a PyTorch model into ONNX"
        raise ModelError(f"this is {what}, not an ONNX model", where=where, hint=hint)


def _check_proto(proto: onnx.ModelProto, where: str) -> None:
    if not proto.HasField("graph") or proto.ir_version <= 0:
        raise ModelError(
            "this is not an ONNX model: it has no graph or no IR version",
            where=where,
            hint="other protobuf files (a TensorFlow `.pb`, say) parse as empty models",
        )
    if not proto.graph.node:
        raise ModelError("the graph has no nodes", where=where, hint="export the model again")
    if not proto.graph.output:
        raise ModelError("the graph has no outputs", where=where, hint="export the model again")
    if not proto.opset_import:
        raise ModelError("the model imports no operator set", where=where)
    for item in proto.opset_import:
        newest = onnx.defs.onnx_opset_version()
        if item.domain in ("", "ai.onnx") and not 1 <= item.version <= newest:
            raise UnsupportedError(
                f"the model wants opset {item.version}; this installation knows 1 to {newest}",
                where=where,
                hint="export with an older opset (17 is safe everywhere) or upgrade `onnx`",
            )
    for info in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        _check_declared_shape(info, where)


def _check_declared_shape(info: onnx.ValueInfoProto, where: str) -> None:
    dims = [d.dim_value for d in info.type.tensor_type.shape.dim if d.HasField("dim_value")]
    # PaddlePaddle's exporter writes -1 for an open dimension; onnx_ir reads it as such.
    if any(d < -1 for d in dims):
        raise ModelError(f"`{info.name}` declares a negative dimension: {dims}", where=where)
    if math.prod(abs(d) for d in dims) > MAX_ELEMENTS:
        raise ModelError(
            f"`{info.name}` declares {math.prod(dims):.3g} elements: {dims}",
            where=where,
            hint="no machine holds that; the file is damaged or hostile",
        )


def _all_tensors(graph: onnx.GraphProto, depth: int = 0) -> Iterator[onnx.TensorProto]:
    if depth > 16:
        raise ModelError(f"subgraphs are nested more than {depth - 1} deep (graph `{graph.name}`)")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in _attribute_graphs(attribute):
                yield from _all_tensors(inner, depth + 1)


def _attribute_graphs(attribute: onnx.AttributeProto) -> Iterable[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _check_tensor(tensor: onnx.TensorProto, base: Path, where: str) -> None:
    place = f"{where}, tensor `{tensor.name}`"
    if any(d < 0 for d in tensor.dims) or math.prod(tensor.dims) > MAX_ELEMENTS:
        raise ModelError(f"a tensor has impossible dimensions {list(tensor.dims)}", where=place)
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise ModelError(
            f"a tensor has unknown data type number {tensor.data_type}", where=place
        ) from error
    if kind == ir.DataType.UNDEFINED:
        raise ModelError("a tensor has no data type", where=place)
    if kind == ir.DataType.STRING:
        return
    expected = (math.prod(tensor.dims) * kind.bitwidth + 7) // 8
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, expected, base, place)
    elif tensor.HasField("raw_data") and len(tensor.raw_data) != expected:
        raise ModelError(
            f"a tensor of shape {list(tensor.dims)} needs {expected:,} bytes and has "
            f"{len(tensor.raw_data):,}",
            where=place,
            hint="the file is damaged; export or download it again",
        )
    elif not tensor.HasField("raw_data"):
        _check_typed_data(tensor, kind, place)


def _check_typed_data(tensor: onnx.TensorProto, kind: ir.DataType, place: str) -> None:
    count = math.prod(tensor.dims)
    if kind.bitwidth < 8:
        count = (count * kind.bitwidth + 7) // 8
    elif kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        count *= 2
    stored = max(
        len(tensor.float_data),
        len(tensor.int32_data),
        len(tensor.int64_data),
        len(tensor.double_data),
        len(tensor.uint64_data),
    )
    if stored != count:
        raise ModelError(
            f"a tensor of shape {list(tensor.dims)} needs {count:,} values and has {stored:,}",
            where=place,
            hint="the file is damaged; export or download it again",
        )


def _check_external(tensor: onnx.TensorProto, expected: int, base: Path, place: str) -> None:
    facts = {item.key: item.value for item in tensor.external_data}
    location = facts.get("location", "")
    relative = Path(location.replace("\\", "/"))
    unsafe = (
        not location
        or "\x00" in location
        or relative.is_absolute()
        or ".." in relative.parts
        or (len(location) > 1 and location[1] == ":")
    )
    if unsafe:
        raise ModelError(
            f"external data points outside the model's folder: {location!r}",
            where=place,
            hint="external data must be a file beside the model",
        )
    file = base / relative
    if file.is_symlink() or not file.resolve().is_relative_to(base):
        raise ModelError(
            f"external data `{location}` is a link; only plain files are followed",
            where=place,
            hint="copy the real file beside the model",
        )
    if not file.is_file():
        raise ModelError(
            f"external data `{location}` is missing",
            where=place,
            hint=f"put it beside the model, in {base}",
        )
    try:
        offset = int(facts.get("offset", "0"))
        length = int(facts["length"]) if "length" in facts else expected
    except ValueError as error:
        raise ModelError("external data has a bad offset or length", where=place) from error
    size = file.stat().st_size
    if offset < 0 or length != expected or offset + length > size:
        raise ModelError(
            f"external data does not fit: {expected:,} bytes are needed, {length:,} declared at "
            f"offset {offset:,} of `{location}`, which has {size:,}",
            where=place,
            hint="model and data file do not belong together, or one is cut short",
        )


def _check_domains(model: ir.Model, where: str) -> None:
    functions = {(domain, name) for domain, name, _ in model.functions}
    for node in model.graph.all_nodes():
        if node.op_type == "EPContext":
            raise UnsupportedError(
                "this model holds a compiled program (EPContext), not the graph it came from",
                where=f"{where}, node `{node.name}`, source `{_source_of(node)}`",
                hint="use the model it was compiled from",
            )
        if node.domain in _KNOWN_DOMAINS or (node.domain, node.op_type) in functions:
            continue
        raise UnsupportedError(
            f"operator `{node.domain}::{node.op_type}` is from a domain nobody here knows",
            where=f"{where}, node `{node.name}`",
            hint="a custom operator needs its library; export without it, or as standard operators",
        )


def _source_of(node: ir.Node) -> str:
    attribute = node.attributes.get("source")
    return "unknown" if attribute is None else attribute.as_string()
