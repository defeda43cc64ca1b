"""Giving open dimensions a size: by the dimension's name, or an input's whole shape.

And the command-line options that do it: what a hint says to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.files import shown
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.passes.sort_nodes import sort_nodes

# ONNX stores sizes in 64 bits with a sign.
_LARGEST_SIZE = 2**63 - 1

Dimensions = Mapping[str, int | Sequence[int]]


def bind_dimensions(model: ir.Model, dims: Dimensions) -> ir.Model:
    """Return a copy of `model` (weights shared) in which the named dimensions have the given sizes.

    A key is a dimension's name with one size, or an input's name with all of its sizes:
    `{"batch": 1}`, `{"x": (1, 3, 48, 320)}`; of an input of one dimension, `{"ids": 128}`
    too. A name bound through an input's shape is bound everywhere it stands.

    Raises: OptionError for a name that the model does not have (with what it has), a size below
    1, or two sizes for one name.
    """
    sort_nodes(model, Notes())  # what is not in order cannot be cloned
    bound = model.clone()
    bind_in_place(bound, dims, Notes())
    return bound


def bind_in_place(model: ir.Model, dims: Dimensions, notes: Notes) -> None:
    """Do the work of `bind_dimensions` on the model itself."""
    if not dims:
        return
    inputs = {value.name or "": value for value in required_inputs(model)}
    names = symbolic_names(model)
    sizes: dict[str, int] = {}
    for key, wanted in dims.items():
        if isinstance(wanted, int) and key in names:
            _set_size(sizes, key, wanted)
        elif isinstance(wanted, int):
            if key not in inputs or _rank(inputs[key]) not in (None, 1):
                raise _unknown(key, model)
            _bind_shape(inputs[key], (wanted,), sizes, notes)
        elif key in inputs:
            _bind_shape(inputs[key], tuple(wanted), sizes, notes)
        else:
            raise _unknown(key, model)
    _substitute(model, sizes, notes)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def symbolic_names(model: ir.Model) -> tuple[str, ...]:
    """Return the names of open dimensions on the inputs, in order of appearance."""
    found: dict[str, None] = {}
    for value in required_inputs(model):
        for size in value.shape.dims if value.shape is not None else ():
            name = dimension_name(size)
            if name:
                found[name] = None
    return tuple(found)


def open_dimensions(model: ir.Model) -> tuple[str, ...]:
    """Describe every open dimension of the inputs: its name, else the input and the axis."""
    found: dict[str, None] = {}
    for value in required_inputs(model):
        for axis, size in enumerate(value.shape.dims if value.shape is not None else ()):
            if isinstance(size, int) and size >= 0:
                continue
            found[dimension_name(size) or f"{value.name} (axis {axis}, no name)"] = None
    return tuple(found)


def dimension_name(size: int | ir.SymbolicDim) -> str:
    """Return the name of an open dimension, empty where it has none.

    Exporters write `?` for `no name`: two of those are not the same size.
    """
    if isinstance(size, int) or size.value is None or size.value == "?":
        return ""
    return str(size.value)


def _bind_shape(
    value: ir.Value, wanted: tuple[int, ...], sizes: dict[str, int], notes: Notes
) -> None:
    place = f"input `{value.name}`"
    for axis, size in enumerate(wanted):
        _check_size(f"{value.name}[{axis}]", size)
    if value.shape is None:
        value.shape = ir.Shape(wanted)
        notes.fired += len(wanted)
        return
    if len(wanted) != len(value.shape):
        raise OptionError(
            f"the shape {list(wanted)} has {len(wanted)} dimensions, the model's has "
            f"{len(value.shape)}",
            where=place,
            hint=f"the model declares {describe_shape(value.shape)}",
        )
    for axis, (size, declared) in enumerate(zip(wanted, value.shape.dims, strict=True)):
        if isinstance(declared, int) and declared >= 0:
            if declared != size:
                raise OptionError(
                    f"axis {axis} is fixed at {declared} and cannot be bound to {size}",
                    where=place,
                    hint=f"the model declares {describe_shape(value.shape)}",
                )
            continue
        name = dimension_name(declared)
        if name:
            _set_size(sizes, name, size)
        else:
            notes.fired += 1
    value.shape = ir.Shape(
        [
            declared if dimension_name(declared) else size
            for size, declared in zip(wanted, value.shape.dims, strict=True)
        ]
    )


def _set_size(sizes: dict[str, int], name: str, size: int) -> None:
    _check_size(name, size)
    if sizes.setdefault(name, size) != size:
        raise OptionError(f"dimension `{name}` is bound to both {sizes[name]} and {size}")


def _check_size(name: str, size: int) -> None:
    if isinstance(size, bool) or not 1 <= size <= _LARGEST_SIZE:
        raise OptionError(
            f"dimension `{name}` cannot be {shown(size)}",
            hint="a size is a whole number from 1 on, of 63 bits at most",
        )


def _substitute(model: ir.Model, sizes: Mapping[str, int], notes: Notes) -> None:
    """Write the sizes wherever the names stand, and forget shapes that were derived from them.

    A name on an output is a claim, which exporters make of sizes that only look alike: what the
    nodes make of the inputs says whether it holds.
    """
    interface = {*model.graph.inputs, *model.graph.outputs}
    values = [*model.graph.inputs]
    for graph in model.graphs():
        values.extend(output for node in graph for output in node.outputs)
    for value in values:
        if value.shape is None:
            continue
        dims = [sizes.get(dimension_name(size), size) for size in value.shape.dims]
        if all(isinstance(size, int) and size >= 0 for size in value.shape.dims):
            continue
        notes.fired += sum(dimension_name(size) in sizes for size in value.shape.dims)
        # What is still open was inferred before the sizes were known: infer it anew.
        closed = all(isinstance(size, int) and size >= 0 for size in dims)
        if value in model.graph.outputs and value not in model.graph.inputs:
            dims = [
                ir.SymbolicDim(None) if dimension_name(size) in sizes else size
                for size in value.shape.dims
            ]
        value.shape = ir.Shape(dims) if closed or value in interface else None


def describe_shape(shape: ir.Shape) -> str:
    """Write a shape with the names of its open dimensions: `[batch, 3, ?, ?]`."""
    parts = [
        str(size) if isinstance(size, int) and size >= 0 else dimension_name(size) or "?"
        for size in shape.dims
    ]
    return f"[{', '.join(parts)}]"


def _unknown(key: str, model: ir.Model) -> OptionError:
    for value in required_inputs(model):
        if value.name == key and value.shape is not None:
            return OptionError(
                f"`{key}` is an input of {len(value.shape)} dimensions, and one size is given",
                hint=f"the model declares {describe_shape(value.shape)}: write all sizes, with "
                "`x` between them",
            )
    candidates = [*symbolic_names(model), *(value.name or "" for value in required_inputs(model))]
    near = difflib.get_close_matches(key, candidates, n=1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    opened = ", ".join(f"`{name}`" for name in open_dimensions(model))
    listed = f"dynamic dimensions: {opened}" if opened else "every input has a fixed shape"
    inputs = ", ".join(
        f"`{value.name}`" + (f" {describe_shape(value.shape)}" if value.shape is not None else "")
        for value in required_inputs(model)
    )
    return OptionError(
        f"the model has no dynamic dimension or input shape named `{key}`",
        hint=f"{meant}{listed}; inputs: {inputs}",
    )


def dimension_options(model: ir.Model) -> str:
    """Return `--dim` options that bind all that is open: by name, else an input's whole shape."""
    options: dict[str, None] = {}
    for value in required_inputs(model):
        sizes = value.shape.dims if value.shape is not None else None
        if sizes is None:
            options[f"--dim {value.name}=SIZExSIZE"] = None
            continue
        named = [None if _is_bound(size) else dimension_name(size) or "" for size in sizes]
        if "" in named:
            wanted = [
                size if isinstance(size, int) and size >= 0 else _usual(axis, len(sizes))
                for axis, size in enumerate(sizes)
            ]
            options[f"--dim {value.name}={'x'.join(map(str, wanted))}"] = None
            continue
        for axis, name in enumerate(named):
            if name and not any(option.startswith(f"--dim {name}=") for option in options):
                options[f"--dim {name}={_usual(axis, len(sizes))}"] = None
    return " ".join(options)


def _is_bound(size: object) -> bool:
    return isinstance(size, int) and size >= 0


def _usual(axis: int, rank: int) -> int:
    """Return a size that such a dimension often has: of a batch, a picture, a text."""
    if axis == 0:
        return 1
    if rank >= 4:
        return 3 if axis == 1 else 224
    return 128
