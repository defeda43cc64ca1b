"""Calibration data from files: images, `.npy`, `.npz`, or noise where that is asked for by name.

Files are read when their sample is due, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.arrays import npz_names, read_npy, read_npz
from vermilion.ir.execute import Array
from vermilion.quantize.feeds import InputSlot, describe, input_slots

Layout = Literal["nchw", "nhwc"]

RANDOM = "random"

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
ARRAY_SUFFIXES = frozenset({".npy", ".npz"})


@dataclass(frozen=True)
class ImageOptions:
    """How a picture becomes an array: value ÷ 255, less `mean`, divided by `std`.

    Shapes: `mean` and `std` hold one value, or one a channel (red, green, blue). `resize` is
    (height, width); without it the model's own size is taken.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Layout = "nchw"
    resize: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.layout not in ("nchw", "nhwc"):
            raise OptionError(
                f"unknown layout `{self.layout}`", hint="known layouts: `nchw`, `nhwc`"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, 3):
                raise OptionError(
                    f"`{name}` has {len(values)} values and takes 1 or 3",
                    hint="give one for all channels, or one for each: red, green, blue",
                )
        if not all(value > 0 for value in self.std):
            raise OptionError("every value of `std` must be above 0")


@dataclass(frozen=True)
class Samples:
    """Calibration data that can be read more than once."""

    source: Path | str
    slots: tuple[InputSlot, ...]
    limit: int
    files: tuple[Path, ...] = ()
    images: ImageOptions = field(default_factory=ImageOptions)
    seed: int = 0

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for number, sample in enumerate(self._all()):
            if number == self.limit:
                return
            yield sample

    def _all(self) -> Iterator[dict[str, Array]]:
        if not self.files:
            rng = np.random.default_rng(self.seed)
            while True:
                yield {slot.name: _noise(slot, rng) for slot in self.slots}
        for file in self.files:
            if file.suffix.lower() in IMAGE_SUFFIXES:
                yield {self.slots[0].name: _image(file, self.slots[0], self.images)}
            elif file.suffix.lower() == ".npy":
                yield from _split(
                    {_only(self.slots, file).name: read_npy(file, mapped=True)}, self.slots, file
                )
            else:
                yield from _split(_load_npz(file, self.slots), self.slots, file)


def open_samples(
    source: Path | str,
    model: ir.Model,
    *,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    layout: Layout = "nchw",
    resize: tuple[int, int] | None = None,
    limit: int = 32,
    seed: int = 0,
) -> Samples:
    """Give at most `limit` samples for `model` from `source`.

    `source` is a folder of pictures, a folder of `.npy` or `.npz` files, one such file, or the
    word `random`. An array may hold one sample, or many along its first axis.

    Raises: OptionError where the source is not there, holds nothing of use, or cannot fit.
    """
    if limit < 1:
        raise OptionError(
            f"the number of samples must be at least 1, got {limit}", hint="32 are usual"
        )
    slots = input_slots(model)
    images = ImageOptions(tuple(mean), tuple(std), layout, resize)
    if source == RANDOM:
        _check_random(slots)
        return Samples(RANDOM, slots, limit, seed=seed)
    files = _files_of(Path(source))
    if files[0].suffix.lower() in IMAGE_SUFFIXES:
        _image_size(_only(slots, files[0]), images)
        _import_pillow()
    return Samples(Path(source), slots, limit, files, images)


def _files_of(source: Path) -> tuple[Path, ...]:
    if source.is_file() and source.suffix.lower() in ARRAY_SUFFIXES | IMAGE_SUFFIXES:
        return (source,)
    if not source.is_dir():
        wrong = "is not a kind of file that is read" if source.exists() else "does not exist"
        raise OptionError(
            f"calibration data `{source}` {wrong}",
            hint="give a folder of pictures, of .npy or of .npz files, one such file, or `random`",
        )
    files = sorted(path for path in source.iterdir() if path.is_file())
    arrays = [path for path in files if path.suffix.lower() in ARRAY_SUFFIXES]
    pictures = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    if arrays and pictures:
        raise OptionError(
            f"`{source}` holds both pictures and arrays", hint="keep one kind in the folder"
        )
    if not arrays and not pictures:
        known = ", ".join(sorted(ARRAY_SUFFIXES | IMAGE_SUFFIXES))
        raise OptionError(f"`{source}` holds no calibration data", hint=f"read are {known}")
    return tuple(arrays or pictures)


def _only(slots: tuple[InputSlot, ...], file: Path) -> InputSlot:
    if len(slots) != 1:
        names = ", ".join(f"`{slot.name}`" for slot in slots)
        raise OptionError(
            f"`{file.name}` holds one array and the model has {len(slots)} inputs: {names}",
            hint="give .npz files with one array for each input, under the input's name",
        )
    return slots[0]


def _check_random(slots: tuple[InputSlot, ...]) -> None:
    for slot in slots:
        if slot.shape is None or any(length is None for length in slot.shape[1:]):
            raise OptionError(
                f"input `{slot.name}` has open dimensions: {slot.describe()}",
                hint="random data needs sizes: bind them with `--dim`",
            )


def _noise(slot: InputSlot, rng: np.random.Generator) -> Array:
    """Give normal numbers, or zeros and ones: whatever integers stand for, these are legal."""
    shape = tuple(1 if length is None else length for length in slot.shape or ())
    if slot.dtype.kind == "f":
        return rng.standard_normal(shape).astype(slot.dtype)
    return rng.integers(0, 2, shape).astype(slot.dtype)


def _load_npz(file: Path, slots: tuple[InputSlot, ...]) -> dict[str, Array]:
    found = npz_names(file)
    missing = [slot.name for slot in slots if slot.name not in found]
    if missing and len(slots) == len(found) == 1:
        return {slots[0].name: read_npz(file)[found[0]]}  # one array, one input
    if not missing:
        return read_npz(file, [slot.name for slot in slots])
    raise OptionError(
        f"`{file.name}` has no array for input {', '.join(f'`{name}`' for name in missing)}",
        where=str(file),
        hint=f"it holds {', '.join(f'`{name}`' for name in found) or 'nothing'}",
    )


def _split(
    arrays: Mapping[str, Array], slots: tuple[InputSlot, ...], file: Path
) -> Iterator[dict[str, Array]]:
    """Give the samples that lie along the first axis of the arrays."""
    cut = {slot.name: _pieces(slot, arrays[slot.name], file) for slot in slots}
    counts = {name: len(pieces) for name, pieces in cut.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"`{name}` {count}" for name, count in counts.items())
        raise OptionError(
            f"the arrays hold different numbers of samples: {listed}",
            where=str(file),
            hint="give as many of each input",
        )
    for number in range(next(iter(counts.values()), 0)):
        yield {name: np.array(pieces[number]) for name, pieces in cut.items()}


def _pieces(slot: InputSlot, array: Array, file: Path) -> Sequence[Array]:
    """Cut an array into samples (views): it is one, or has more of them along its first axis."""
    shape = array.shape
    if slot.shape is None or not slot.shape:
        return [array]
    batch = slot.shape[0]
    if len(shape) == len(slot.shape) + 1 and slot.takes_shape(shape[1:]):
        return list(array)
    if len(shape) == len(slot.shape) - 1 and batch in (1, None):
        array = array[None]
        shape = array.shape
    size = 1 if batch is None else batch
    if shape and slot.takes_shape((size, *shape[1:])) and shape[0] % size == 0:
        return [array[start : start + size] for start in range(0, shape[0], size)]
    raise OptionError(
        f"input `{slot.name}` got {describe(array.dtype, array.shape)} and expected "
        f"{slot.describe()}, or several of them along a first axis",
        where=str(file),
        hint="write the arrays as the model takes them, or bind other sizes with `--dim`",
    )


def _import_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401  (only to know whether it is there)
    except ImportError as error:
        raise OptionError(
            "reading pictures needs Pillow, which is not installed",
            hint="pip install 'vermilion[images]'",
        ) from error


def _image_size(slot: InputSlot, options: ImageOptions) -> tuple[int, int, int]:
    """Give channels, height and width that the model wants."""
    if slot.shape is None or len(slot.shape) != 4 or slot.dtype != np.float32:
        raise OptionError(
            f"input `{slot.name}` takes no pictures: it is {slot.describe()}",
            hint="pictures become float32 arrays of four dimensions; give .npy files instead",
        )
    order = (1, 2, 3) if options.layout == "nchw" else (3, 1, 2)
    channels, height, width = (slot.shape[axis] for axis in order)
    if channels not in (1, 3, None):
        raise OptionError(
            f"input `{slot.name}` has {channels} channels in layout `{options.layout}`: "
            f"{slot.describe()}",
            hint="pictures have 1 or 3 channels; is the layout the other one?",
        )
    height, width = options.resize or (height, width)
    if height is None or width is None:
        raise OptionError(
            f"input `{slot.name}` leaves the size of pictures open: {slot.describe()}",
            hint="bind it with `--dim`, or give `--resize HEIGHTxWIDTH`",
        )
    return (3 if channels is None else channels), height, width


def _image(file: Path, slot: InputSlot, options: ImageOptions) -> Array:
    from PIL import Image, UnidentifiedImageError

    channels, height, width = _image_size(slot, options)
    try:
        with Image.open(file) as opened:
            picture = opened.convert("RGB" if channels == 3 else "L")
            picture = picture.resize((width, height), Image.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise OptionError(
            f"`{file.name}` is not a picture that can be read: {error}",
            where=str(file),
            hint="take it out of the folder, or save it again as PNG or JPEG",
        ) from error
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels) / np.float32(255)
    mean, std = np.asarray(options.mean, np.float32), np.asarray(options.std, np.float32)
    pixels = (pixels - mean) / std
    if pixels.shape[2] != channels:
        raise OptionError(f"`mean` or `std` has 3 values and `{slot.name}` takes 1 channel")
    ordered = pixels.transpose(2, 0, 1) if options.layout == "nchw" else pixels
    return np.ascontiguousarray(ordered[None], np.float32)
