"""Faults put into a model: in its bytes, its fields, and in what it says of itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import AttributeProto, TensorProto

from mutated_files.wire import every, parse, written

Random = random.Random
_NUMBERS = (
    0, 1, 2, 3, -1, -2, 7, 8, 64, 255, 256, 65_535, 2**20, 2**31 - 1, 2**31, -(2**31), 2**32,
    2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
_NAMES = ("", "x", "../../x", "a" * 5000, "\x00", "\x1b[31m", "ünï\u202ecode", "con", "%s%n", " ")
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38, -1e-40)


# Bytes --------------------------------------------------------------------------------------------


def flip_bits(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8])):
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def other_bytes(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    at = random.randrange(len(out))
    out[at : at + random.choice([1, 2, 4, 16])] = random.choice(
        [b"\xff" * 4, bytes(4), b"\x7f" * 2, random.randbytes(6), b""]
    )
    return bytes(out)


def cut(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    if random.random() < 0.5:
        return data[:at]
    return data[:at] + data[at + random.choice([1, 3, 50]) :]


def repeat_bytes(data: bytes, random: Random) -> bytes:
    at, size = random.randrange(len(data)), random.choice([1, 8, 100])
    return data[:at] + data[at : at + size] * random.choice([2, 5]) + data[at + size :]


# Fields -------------------------------------------------------------------------------------------


def other_field(data: bytes, random: Random) -> bytes:
    """Change, drop, repeat, move or swap some field, at any depth."""
    fields = parse(data)
    if fields is None:
        return flip_bits(data, random)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        places = every(fields)
        if not places:
            break
        holder, at = random.choice(places)
        field = holder[at]
        kind = random.randrange(6)
        if kind == 0:
            del holder[at]
        elif kind == 1:
            holder.insert(at, field)
        elif kind == 2:
            other_holder, other = random.choice(places)
            if other < len(other_holder):
                field.payload, field.kind = other_holder[other].payload, other_holder[other].kind
                if written_depth(field.payload) > 40:
                    field.payload, field.kind = 0, 0
        elif kind == 3:
            field.number = random.choice([1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 20, field.number])
        elif isinstance(field.payload, int):
            field.payload = random.choice([*_NUMBERS, field.payload + 1, field.payload - 1])
        elif isinstance(field.payload, bytes):
            raw = field.payload
            if field.kind == 2:
                field.payload = random.choice(
                    [b"", raw[:-1], raw + b"\x00", raw * 2, random.randbytes(len(raw))]
                )
            else:
                field.payload = random.randbytes(len(raw))
    return written(fields)


def written_depth(payload: object, depth: int = 0) -> int:
    """Return how deep a message nests; one that holds itself is deeper than any."""
    if not isinstance(payload, list) or depth > 50:
        return depth
    return max((written_depth(f.payload, depth + 1) for f in payload), default=depth)


# What a model says --------------------------------------------------------------------------------

Change = Callable[[onnx.ModelProto, Random], None]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    inside = [a.t for n in model.graph.node for a in n.attribute if a.type == AttributeProto.TENSOR]
    return [*model.graph.initializer, *inside]


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    graph = model.graph
    return [*graph.input, *graph.output, *graph.value_info]


def other_dims(model: onnx.ModelProto, random: Random) -> None:
    tensor = random.choice(_tensors(model) or [TensorProto()])
    dims = list(tensor.dims)
    kind = random.randrange(4)
    if kind == 0 or not dims:
        dims.append(random.choice(_NUMBERS))
    elif kind == 1:
        dims.pop()
    elif kind == 2:
        random.shuffle(dims)
    else:
        dims[random.randrange(len(dims))] = random.choice(_NUMBERS)
    tensor.ClearField("dims")
    tensor.dims.extend(dims)


def other_data(model: onnx.ModelProto, random: Random) -> None:
    tensor = random.choice(_tensors(model) or [TensorProto()])
    raw = tensor.raw_data
    kind = random.randrange(4)
    if kind == 0:
        tensor.raw_data = raw[: random.randrange(len(raw) + 1)]
    elif kind == 1:
        tensor.raw_data = raw + random.randbytes(random.choice([1, 4, 64]))
    elif kind == 2:
        tensor.raw_data = random.randbytes(len(raw))
    else:
        tensor.data_location = TensorProto.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", random.choice(["", "w.bin", "../w.bin", "/etc/passwd"])


def other_tensor_type(model: onnx.ModelProto, random: Random) -> None:
    random.choice(_tensors(model) or [TensorProto()]).data_type = random.randrange(-1, 28)


def lie_in_shape(model: onnx.ModelProto, random: Random) -> None:
    value = random.choice(_values(model) or [onnx.ValueInfoProto()])
    shape = value.type.tensor_type.shape
    kind = random.randrange(5)
    if kind == 0 or not shape.dim:
        shape.dim.add().dim_value = random.choice(_NUMBERS)
    elif kind == 1:
        del shape.dim[random.randrange(len(shape.dim))]
    elif kind == 2:
        shape.dim[random.randrange(len(shape.dim))].dim_param = random.choice(["n", *_NAMES])
    elif kind == 3:
        value.type.tensor_type.ClearField("shape")
    else:
        dim = shape.dim[random.randrange(len(shape.dim))]
        dim.dim_value = random.choice([*_NUMBERS, dim.dim_value + 1, dim.dim_value - 1])


def lie_in_type(model: onnx.ModelProto, random: Random) -> None:
    value = random.choice(_values(model) or [onnx.ValueInfoProto()])
    value.type.tensor_type.elem_type = random.randrange(0, 27)


def lie_inside(model: onnx.ModelProto, random: Random) -> None:
    """Declare a value inside the graph as what it is not."""
    names = [name for node in model.graph.node for name in node.output if name]
    sizes = [random.choice([1, 2, 3, 5, 17, 100, 10**6]) for _ in range(random.randrange(5))]
    kind = random.choice([1, 1, 1, 7, 9, 10])
    value = onnx.helper.make_tensor_value_info(random.choice(names or ["x"]), kind, sizes)
    model.graph.value_info.append(value)


def other_attribute(model: onnx.ModelProto, random: Random) -> None:
    attributes = [a for node in model.graph.node for a in node.attribute]
    if not attributes:
        return add_attribute(model, random)
    attribute = random.choice(attributes)
    kind = random.randrange(6)
    if kind == 0:
        attribute.type = random.randrange(0, 15)
    elif kind == 1:
        attribute.name = random.choice([*_NAMES, "axis", "pads", "perm", "kernel_shape"])
    elif attribute.type == AttributeProto.INT:
        attribute.i = random.choice(_NUMBERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = random.choice(_FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = random.choice([b"", b"SAME_UPPER", b"\xff\xfe", b"linear", b"x" * 1000])
    elif attribute.type == AttributeProto.INTS:
        ints = list(attribute.ints)
        if kind == 2 or not ints:
            ints.append(random.choice(_NUMBERS))
        elif kind == 3:
            ints.pop()
        else:
            ints[random.randrange(len(ints))] = random.choice(_NUMBERS)
        attribute.ClearField("ints")
        attribute.ints.extend(ints)


def add_attribute(model: onnx.ModelProto, random: Random) -> None:
    if not model.graph.node:
        return
    name = random.choice(
        ["axis", "axes", "group", "pads", "strides", "dilations", "keepdims", "perm", "to", "mode",
         "auto_pad", "ceil_mode", "block_size", "num_outputs", "output_shape", "hidden_size"]
    )  # fmt: skip
    value = random.choice(
        [random.choice(_NUMBERS), [random.choice(_NUMBERS)] * 2, "SAME_LOWER", 0.5]
    )
    node = random.choice(model.graph.node)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def other_wires(model: onnx.ModelProto, random: Random) -> None:
    nodes = list(model.graph.node)
    if not nodes:
        return
    node = random.choice(nodes)
    known = [name for other in nodes for name in (*other.output, *other.input)]
    ends = random.choice([node.input, node.output])
    kind = random.randrange(4)
    if kind == 0 and ends:
        ends[random.randrange(len(ends))] = random.choice([*known, *_NAMES])
    elif kind == 1:
        ends.append(random.choice([*known, *_NAMES]))
    elif kind == 2 and ends:
        del ends[random.randrange(len(ends))]
    elif ends:
        ends[random.randrange(len(ends))] = ""


def other_nodes(model: onnx.ModelProto, random: Random) -> None:
    nodes = model.graph.node
    if not nodes:
        return
    at = random.randrange(len(nodes))
    kind = random.randrange(5)
    if kind == 0:
        del nodes[at]
    elif kind == 1:
        nodes.add().CopyFrom(nodes[at])
    elif kind == 2:
        nodes[at].op_type = random.choice(
            ["Conv", "MatMul", "Relu", "Concat", "Gather", "Pad", "Slice", "LSTM", "Softmax", "If",
             "Loop", "Scan", "Resize", "Nothing", "", "QuantizeLinear", "Split", "Reshape"]
        )  # fmt: skip
    elif kind == 3:
        nodes[at].domain = random.choice(["ai.onnx", "com.microsoft", "ai.onnx.ml", "made.up"])
    else:
        other = random.randrange(len(nodes))
        first, second = onnx.NodeProto(), onnx.NodeProto()
        first.CopyFrom(nodes[at])
        second.CopyFrom(nodes[other])
        nodes[at].CopyFrom(second)
        nodes[other].CopyFrom(first)


def other_ends(model: onnx.ModelProto, random: Random) -> None:
    """Drop, add or rename inputs, outputs and initializers."""
    graph = model.graph
    part = random.choice([graph.input, graph.output, graph.initializer])
    kind = random.randrange(4)
    if not part:
        return
    at = random.randrange(len(part))
    if kind == 0:
        del part[at]
    elif kind == 1:
        part.add().CopyFrom(part[at])
    elif kind == 2:
        part[at].name = random.choice(_NAMES)
    else:
        names = [name for node in graph.node for name in (*node.output, *node.input)]
        part[at].name = random.choice(names or ["x"])


def other_versions(model: onnx.ModelProto, random: Random) -> None:
    if random.random() < 0.3 or not model.opset_import:
        model.ir_version = random.choice([0, 1, 3, 7, 11, 99, 2**40])
        return
    imported = random.choice(model.opset_import)
    if random.random() < 0.8:
        imported.version = random.choice([*range(1, 28), 0, -1, 10**6, 2**62])
    else:
        imported.domain = random.choice(["ai.onnx", "com.microsoft", "made.up"])


CHANGES: Sequence[Change] = (
    other_dims, other_data, other_tensor_type, lie_in_shape, lie_in_shape, lie_in_type, lie_inside,
    lie_inside, other_attribute, other_attribute, other_attribute, add_attribute, other_wires,
    other_nodes, other_ends, other_versions,
)  # fmt: skip
IN_BYTES: Mapping[str, Callable[[bytes, Random], bytes]] = {
    f.__name__: f for f in (flip_bits, other_bytes, cut, repeat_bytes, other_field)
}


def mutate(data: bytes, seed: int) -> tuple[bytes, str]:
    """Return a changed file, and what was done to it."""
    random = Random(seed)
    if random.random() < 0.3:
        name = random.choice([*IN_BYTES, "other_field", "other_field"])
        return IN_BYTES[name](data, random), name
    model = onnx.ModelProto.FromString(data)
    done = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        change = random.choice(CHANGES)
        try:
            change(model, random)
        except (ValueError, TypeError):  # protobuf does not hold such a value
            continue
        done.append(change.__name__)
    return model.SerializeToString(), " + ".join(done)
