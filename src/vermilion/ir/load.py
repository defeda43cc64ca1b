"""The door: a file from outside becomes a graph, or one clear error. Nothing is executed.

Weights in external files are memory-mapped, so a model over 2 GB is loaded without a copy.
The order of the checks matters: each relies on what those before it have ruled out.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.files import not_there
from vermilion.ir.external_weights import APART_BYTES, read_apart
from vermilion.ir.foreign_files import HEAD_BYTES, foreign_file
from vermilion.ir.map_types import leave_out_maps
from vermilion.ir.protobuf import (
    MAX_GRAPH_BYTES,
    WireError,
    all_graphs,
    check_attribute_names,
    check_functions,
    check_texts,
    graph_bytes,
    inner_tensors,
)
from vermilion.ir.quark import write_blocks_in_standard_operators
from vermilion.ir.schemas import check_nodes
from vermilion.ir.sparse import make_dense
from vermilion.ir.stored import (
    INTEGERS,
    MAX_ELEMENTS,
    MAX_RANK,
    SMALL_BYTES,
    check_tensor,
    read_in,
)
from vermilion.ir.verify import check_graph
from vermilion.memory import no_collection

# protobuf refuses messages of 2 GiB and more; larger models keep their weights outside.
MAX_PROTO_BYTES = 2**31 - 1

_AGAIN = "export the model again"
_DAMAGED = "the file is damaged; export or download it again"


IN_MEMORY = "(in memory)"
"""Where a model is that came from no file."""


@no_collection()
def load_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ir.Model:
    """Read an ONNX model and check everything about it that can be checked without running it.

    `source` is a file, a file's bytes, or what `onnx` made of it, which stays as it is. Weights in
    other files are read for a model that is a file.

    Raises: OptionError if there is no such file; ModelError if the file is not a sound model;
    UnsupportedError if it needs operators that nobody here knows.
    """
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return _checked(proto, IN_MEMORY, None, {})
    if isinstance(source, bytes):
        _check_bytes(source)
        return _checked(_parse(source, IN_MEMORY), IN_MEMORY, None, {})
    file = Path(source)
    where = str(file)
    serialized, apart = _read(file, where)
    return _checked(_parse(serialized, where), where, file.parent.resolve(), apart)


def _checked(
    proto: onnx.ModelProto, where: str, base: Path | None, apart: Mapping[int, bytes]
) -> ir.Model:
    """Return the graph of a model whose files lie in `base`, None where it has none."""
    check_texts(proto, where)
    _check_header(proto, where)
    _check_values(proto, where)
    weights: dict[str, bytes] = {}
    inner = list(inner_tensors(proto.graph.node))
    for tensor in (*proto.graph.initializer, *inner):
        if base is None and tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise OptionError(
                f"the weight `{tensor.name}` is in a file of its own",
                where=where,
                hint="give the path of the model, or `onnx.load(path)`, which reads such files",
            )
    for number, tensor in enumerate(proto.graph.initializer):
        check_tensor(tensor, base, where, apart.get(number))
        if number in apart:
            weights[tensor.name] = apart[number]
        elif base is not None and tensor.data_type in INTEGERS:
            read_in(tensor, base, where, SMALL_BYTES)
    for tensor in inner:
        check_tensor(tensor, base, where)
        if base is not None:
            read_in(tensor, base, where)
    for function in proto.functions:
        for tensor in inner_tensors(function.node):
            check_tensor(tensor, None, where)
    write_blocks_in_standard_operators(proto)
    check_functions(proto, where)
    check_attribute_names(proto, where)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # the library raises what it meets: ValueError, KeyError, …
        root = _root(error)
        if isinstance(root, NotImplementedError):
            raise UnsupportedError(
                "the graph has attributes of types that are not read yet: sparse tensors, maps",
                where=where,
                hint="export it without them",
            ) from error
        raise ModelError(
            f"the graph cannot be read: {_first_line(root)}",
            where=where,
            hint="check the file with `python -m onnx.checker`, or export it again",
        ) from error
    _put_in(model, weights)
    if base is not None:
        ir.external_data.set_base_dir(model.graph, base)
        _follow_links(model)
    try:
        check_graph(model)
        check_nodes(model)
    except VermilionError as error:
        place = f"{where}, {error.where}" if error.where else where
        raise type(error)(error.message, where=place, hint=error.hint or _AGAIN) from error
    return model


class _Checked(ir.ExternalTensor):
    """A weight in a file that `check_tensor` has looked at: links to it are followed."""

    def _check_path_containment(self) -> None:
        """Leave it at our own check: the library takes no links, and no files of two names."""


def _follow_links(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = _Checked(
                tensor.location,
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name or "",
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
                base_dir=tensor.base_dir,
            )


def _put_in(model: ir.Model, weights: Mapping[str, bytes]) -> None:
    """Return the weights that were read apart their numbers."""
    for name, data in weights.items():
        value = model.graph.initializers.get(name)
        if value is not None and value.const_value is not None:
            left = value.const_value
            numbers = np.frombuffer(data, left.dtype.numpy()).reshape(left.shape.numpy())
            value.const_value = ir.Tensor(
                numbers,
                name=name,
                doc_string=left.doc_string,
                metadata_props=dict(left.metadata_props),
            )


def _read(file: Path, where: str) -> tuple[bytes, dict[int, bytes]]:
    """Return the serialized model and what `read_apart` kept apart."""
    try:
        info = file.stat()
    except (OSError, ValueError) as error:
        raise not_there(file, error) from error
    if stat.S_ISDIR(info.st_mode):
        raise OptionError(
            "this is a folder, an ONNX file was expected",
            where=where,
            hint="name the `.onnx` file; language models have verbs of their own, `vermilion llm`",
        )
    if not stat.S_ISREG(info.st_mode):
        raise OptionError("this is not a regular file", where=where, hint="name the `.onnx` file")
    if info.st_size == 0:
        raise ModelError("the file is empty", where=where, hint="export or download it again")
    try:
        with file.open("rb") as stream:
            _check_head(stream.read(HEAD_BYTES), file.suffix, where)
            if info.st_size > MAX_PROTO_BYTES:
                raise ModelError(
                    f"the file has {info.st_size:,} bytes; an ONNX file ends at 2 GiB",
                    where=where,
                    hint="save it with external data: `onnx.save(..., save_as_external_data=True)`",
                )
            stream.seek(0)
            found_apart = read_apart(stream, info.st_size) if info.st_size > APART_BYTES else None
            if found_apart is not None:
                return found_apart
            stream.seek(0)
            return stream.read(), {}
    except OSError as error:
        raise OptionError(
            f"the model cannot be read: {error.strerror or error}",
            where=where,
            hint="check who may read it",
        ) from error


def _check_head(head: bytes, suffix: str, where: str) -> None:
    found = foreign_file(head, suffix)
    if found is not None:
        raise ModelError(f"this is {found.what}, not an ONNX model", where=where, hint=found.hint)


def _check_bytes(serialized: bytes) -> None:
    if not serialized:
        raise ModelError("there are no bytes", where=IN_MEMORY, hint=_AGAIN)
    if len(serialized) > MAX_PROTO_BYTES:
        raise ModelError(
            f"there are {len(serialized):,} bytes; an ONNX file ends at 2 GiB",
            where=IN_MEMORY,
            hint="save it with external data: `onnx.save(..., save_as_external_data=True)`",
        )
    _check_head(serialized[:HEAD_BYTES], "", IN_MEMORY)


def _parse(serialized: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        if graph_bytes(serialized) > MAX_GRAPH_BYTES:
            raise ModelError(
                f"the file unfolds into more than {MAX_GRAPH_BYTES >> 20} MiB of nodes and names",
                where=where,
                hint="no exporter writes this: do not trust the file",
            )
        proto.ParseFromString(serialized)
    except (DecodeError, WireError) as error:
        raise ModelError(
            "this is not an ONNX model, or it is cut short or nested too deep",
            where=where,
            hint="check that the file is complete (compare its size with the original)",
        ) from error
    return proto


def _check_header(proto: onnx.ModelProto, where: str) -> None:
    if not proto.HasField("graph") or proto.ir_version <= 0:
        raise ModelError(
            "this is not an ONNX model: it has no graph or no IR version",
            where=where,
            hint="other protobuf files (a TensorFlow `.pb`, say) parse as empty models",
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(
            f"the model has IR version {proto.ir_version}; this installation knows 1 to "
            f"{onnx.IR_VERSION}",
            where=where,
            hint="export with an older version of `onnx`, or upgrade it here",
        )
    given = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    if not proto.graph.node and any(value.name not in given for value in proto.graph.output):
        raise ModelError("the graph has no nodes", where=where, hint=_AGAIN)
    if not proto.graph.output:
        raise ModelError("the graph has no outputs", where=where, hint=_AGAIN)
    if not proto.opset_import:
        raise ModelError("the model imports no operator set", where=where, hint=_AGAIN)
    _check_opsets(proto, where)


def _check_opsets(proto: onnx.ModelProto, where: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    seen: dict[str, int] = {}
    for item in proto.opset_import:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if domain == "" and not 1 <= item.version <= newest:
            raise UnsupportedError(
                f"the model wants opset {item.version}; this installation knows 1 to {newest}",
                where=where,
                hint="export with an older opset (17 is safe everywhere) or upgrade `onnx`",
            )
        if seen.setdefault(domain, item.version) != item.version:
            raise ModelError(
                f"the model imports two versions of the domain `{domain or 'ai.onnx'}`: "
                f"{seen[domain]} and {item.version}",
                where=where,
                hint=_AGAIN,
            )


def _check_values(proto: onnx.ModelProto, where: str) -> None:
    """Check what is declared of values, and that names tell them apart; write sparse ones dense."""
    make_dense(proto, where)
    leave_out_maps(proto, where)
    for graph in all_graphs(proto.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            _check_declared_shape(info, where)
        for info in (*graph.input, *graph.output):
            _check_declared_type(info, where)
        _drop_untyped(graph)
        _check_names(graph, where)


_NO_TYPE = onnx.TensorProto.UNDEFINED


def _check_declared_type(info: onnx.ValueInfoProto, where: str) -> None:
    kind = info.type.tensor_type.elem_type
    if info.type.HasField("tensor_type") and not _is_type(kind):
        said = "no data type" if kind == _NO_TYPE else f"the unknown data type number {kind}"
        raise ModelError(f"`{info.name}` declares {said}", where=where, hint=_DAMAGED)


def _is_type(number: int) -> bool:
    return number != _NO_TYPE and number in onnx.TensorProto.DataType.values()


def _drop_untyped(graph: onnx.GraphProto) -> None:
    """Drop what is said of values inside the graph where it names no type: it is inferred."""
    kept = [
        info
        for info in graph.value_info
        if not info.type.HasField("tensor_type") or _is_type(info.type.tensor_type.elem_type)
    ]
    if len(kept) < len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(kept)


def _check_names(graph: onnx.GraphProto, where: str) -> None:
    """Raise ModelError where two things share a name: the library would take either of them."""
    weights = [tensor.name for tensor in graph.initializer]
    made = {value.name for value in graph.input} | set(weights)
    if "" in made:
        raise ModelError("an input or weight has no name", where=where, hint=_DAMAGED)
    twice, times = next(iter(Counter(weights).most_common(1)), ("", 0))
    if times > 1:
        raise ModelError(f"two weights are called `{twice}`", where=where, hint=_DAMAGED)
    for node in graph.node:
        for name in filter(None, node.output):
            if name in made:
                raise ModelError(
                    f"the value `{name}` is made twice",
                    where=f"{where}, node `{node.name or name}`, {node.op_type}",
                    hint=_AGAIN,
                )
            made.add(name)


def _check_declared_shape(info: onnx.ValueInfoProto, where: str) -> None:
    declared = info.type.tensor_type.shape.dim
    if len(declared) > MAX_RANK:
        raise ModelError(
            f"`{info.name}` declares {len(declared):,} dimensions", where=where, hint=_DAMAGED
        )
    dims = [d.dim_value for d in declared if d.HasField("dim_value")]
    # PaddlePaddle's exporter writes -1 for an open dimension; onnx_ir reads it as such.
    if any(d < -1 for d in dims):
        raise ModelError(
            f"`{info.name}` declares a negative dimension: {dims}", where=where, hint=_DAMAGED
        )
    if math.prod(abs(d) for d in dims if d) > MAX_ELEMENTS:
        raise ModelError(
            f"`{info.name}` declares {math.prod(abs(d) for d in dims):.3g} elements: {dims}",
            where=where,
            hint="no machine holds that; the file is damaged or hostile",
        )


def _root(error: BaseException) -> BaseException:
    """Return what began it: the library wraps errors in where it was."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
