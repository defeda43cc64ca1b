"""Weights as a file holds them: what is stored is what the shape and type need, and lies here."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError

MAX_ELEMENTS = 2**40
"""No tensor that fits a machine has more; guards the arithmetic on sizes."""

MAX_RANK = 64
"""The most dimensions that NumPy 2 gives an array (`NPY_MAXDIMS`)."""

_DAMAGED = "the file is damaged; export or download it again"
_BESIDE = "external data must be a file beside the model"
_NUMBER_DIGITS = 19  # of the largest 64-bit number


def check_tensor(
    tensor: onnx.TensorProto, base: Path | None, where: str, apart: bytes | None = None
) -> None:
    """Check one stored tensor; `base` is the model's folder, None where all must be inside.

    `apart` is what was in its `raw_data`, where the message holds nothing there.

    Raises: ModelError.
    """
    place = f"{where}, tensor `{tensor.name}`"
    if len(tensor.dims) > MAX_RANK:
        raise ModelError(
            f"a tensor has {len(tensor.dims):,} dimensions", where=place, hint=_DAMAGED
        )
    sizes = list(tensor.dims)
    # NumPy leaves out sizes of 0 where it asks whether the others are too many.
    if any(size < 0 for size in sizes) or math.prod(filter(None, sizes)) > MAX_ELEMENTS:
        raise ModelError(f"a tensor has impossible dimensions {sizes}", where=place, hint=_DAMAGED)
    kind = _kind(tensor, place)
    if tensor.HasField("segment"):
        raise ModelError(
            "a tensor is stored in segments, which nothing reads", where=place, hint=_DAMAGED
        )
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, _needed_bytes(kind, sizes, place), base, place)
    elif kind == ir.DataType.STRING:
        _check_count(sizes, math.prod(sizes), len(tensor.string_data), place)
    elif tensor.HasField("raw_data"):
        _check_raw(tensor, _needed_bytes(kind, sizes, place), place, apart)
    else:
        _check_typed(tensor, kind, place)


def _kind(tensor: onnx.TensorProto, place: str) -> ir.DataType:
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise ModelError(
            f"a tensor has the unknown data type number {tensor.data_type}",
            where=place,
            hint="the file is damaged, or newer than the installed `onnx`",
        ) from error
    if kind == ir.DataType.UNDEFINED:
        raise ModelError("a tensor has no data type", where=place, hint=_DAMAGED)
    return kind


def _needed_bytes(kind: ir.DataType, sizes: list[int], place: str) -> int:
    if kind == ir.DataType.STRING:
        raise ModelError("a tensor of strings is stored as bytes", where=place, hint=_DAMAGED)
    return (math.prod(sizes) * kind.bitwidth + 7) // 8


def _check_raw(
    tensor: onnx.TensorProto, needed_bytes: int, place: str, apart: bytes | None
) -> None:
    stored_bytes = len(tensor.raw_data if apart is None else apart)
    if stored_bytes != needed_bytes:
        raise ModelError(
            f"a tensor of shape {list(tensor.dims)} needs {needed_bytes:,} bytes and has "
            f"{stored_bytes:,}",
            where=place,
            hint=_DAMAGED,
        )


def _check_typed(tensor: onnx.TensorProto, kind: ir.DataType, place: str) -> None:
    """Count the values in the field that the type is kept in; the others must be empty.

    Source: the comments on TensorProto's fields in `onnx.proto`.
    """
    wanted = math.prod(tensor.dims)
    if kind.bitwidth < 8:
        wanted = (wanted * kind.bitwidth + 7) // 8
    elif kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        wanted *= 2
    if kind in (ir.DataType.FLOAT, ir.DataType.COMPLEX64):
        used = "float_data"
    elif kind in (ir.DataType.DOUBLE, ir.DataType.COMPLEX128):
        used = "double_data"
    elif kind == ir.DataType.INT64:
        used = "int64_data"
    elif kind in (ir.DataType.UINT32, ir.DataType.UINT64):
        used = "uint64_data"
    else:
        used = "int32_data"
    _check_count(list(tensor.dims), wanted, len(getattr(tensor, used)), place)


def _check_count(sizes: list[int], wanted: int, stored: int, place: str) -> None:
    if stored != wanted:
        raise ModelError(
            f"a tensor of shape {sizes} needs {wanted:,} values and has {stored:,}",
            where=place,
            hint=_DAMAGED,
        )


def _check_external(
    tensor: onnx.TensorProto, needed_bytes: int, base: Path | None, place: str
) -> None:
    facts = {item.key: item.value for item in tensor.external_data}
    if base is None or len(facts) != len(tensor.external_data):
        what = "says the same thing twice" if base is not None else "belongs to a node"
        raise ModelError(
            f"external data {what}",
            where=place,
            hint="save the model again: only weights of the main graph may lie outside",
        )
    location = facts.get("location", "")
    file = _external_file(location, base, place)
    offset = _number(facts.get("offset", "0"), "offset", place)
    # `onnx` itself takes a length of 0 for one that is not given.
    length = _number(facts.get("length", "0"), "length", place) or needed_bytes
    stored = file.stat().st_size
    if length != needed_bytes or offset + length > stored:
        raise ModelError(
            f"external data does not fit: {needed_bytes:,} bytes are needed, {length:,} declared "
            f"at offset {offset:,} of `{location}`, which has {stored:,}",
            where=place,
            hint="model and data file do not belong together, or one is cut short",
        )
    _state_all(tensor, location, offset, length)


INTEGERS = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})
SMALL_BYTES = 1024
"""Up to here integers may be a shape or axes, which onnx looks for in the message alone."""

# Of a tensor in a branch, a body or an attribute: those are part of the message wherever they lie.
_LARGEST_INNER = 1 << 30


def read_in(
    tensor: onnx.TensorProto, base: Path, where: str, most_bytes: int | None = None
) -> None:
    """Put the numbers of a tensor that was checked into the message, if they lie in a file.

    Larger ones than `most_bytes` are left where they are; without it, too large ones are an error.
    """
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    facts = {item.key: item.value for item in tensor.external_data}
    length = int(facts["length"])
    if most_bytes is not None and length > most_bytes:
        return
    if length > _LARGEST_INNER:
        raise ModelError(
            f"a tensor of {length:,} bytes belongs to a node",
            where=f"{where}, tensor `{tensor.name}`",
            hint="make it a weight of the main graph",
        )
    with (base / facts["location"]).open("rb") as file:
        file.seek(int(facts["offset"]))
        tensor.raw_data = file.read(length)
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.DEFAULT


def _state_all(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Write out what was left open, which others read in other ways."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _external_file(location: str, base: Path, place: str) -> Path:
    relative, windows = PurePosixPath(location), PureWindowsPath(location)
    # Source: `onnx.proto`, external_data: a POSIX path relative to the model's folder, no `..`.
    if not location or relative.is_absolute() or windows.drive or ".." in windows.parts:
        raise ModelError(
            f"external data points outside the model's folder: `{location}`",
            where=place,
            hint=_BESIDE,
        )
    if "\\" in location:
        raise ModelError(
            f"external data has a Windows path: `{location}`",
            where=place,
            hint="save the model again with `/`, or with the data in the same folder",
        )
    if not location.isprintable():
        raise ModelError(
            f"external data has an impossible name: `{location}`", where=place, hint=_BESIDE
        )
    file = base / relative
    try:
        real = file.resolve()
        is_inside = real.is_relative_to(base) or real.is_relative_to(_own_tree(base))
        missing = is_inside and not file.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        words = getattr(error, "strerror", None) or str(error)
        raise ModelError(
            f"external data `{location}` cannot be found: {words}",
            where=place,
            hint=_BESIDE,
        ) from error
    if not is_inside:
        raise ModelError(
            f"external data `{location}` is a link that leads out of the model's folder, to "
            f"`{real}`",
            where=place,
            hint="copy the real file beside the model",
        )
    if missing:
        raise ModelError(
            f"external data `{location}` is missing",
            where=place,
            hint=f"put it beside the model, in {base}",
        )
    if not file.is_file():
        raise ModelError(f"external data `{location}` is not a file", where=place, hint=_BESIDE)
    return file


def _own_tree(base: Path) -> Path:
    """Return the folder that links may lead to: the model's own, or its repository in a cache.

    Hugging Face's cache keeps `snapshots/REVISION/…/file` as a link to `blobs/DIGEST`, both in the
    repository's folder. Source: huggingface_hub, "Understand caching".
    """
    for folder in base.parents:
        if folder.name == "snapshots" and (folder.parent / "blobs").is_dir():
            return folder.parent
    return base


def _number(text: str, what: str, place: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS:
        return int(text)
    raise ModelError(
        f"external data has a bad {what}: `{text}`", where=place, hint="save the model again"
    )
