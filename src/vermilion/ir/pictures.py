"""Pictures as arrays for a model: their size, their order of axes, their numbers.

Loads no library of graphs: a process that only reads pictures and runs a compiled model starts
in a fraction of the time that such a library takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.files import shown

Layout = Literal["nchw", "nhwc"]
Fit = Literal["stretch", "crop", "letterbox"]
FITS: tuple[Fit, ...] = get_args(Fit)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
ORDERS = ("rgb", "bgr")
FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""By their numbers in Pillow, which configurations of transformers hold."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})

# With no number beyond it, and none to divide by below its inverse, every pixel is finite in
# float32: (255 · 1e12 + 1e12) · 1e12.
_MOST = 1e12

MOST_SIDE = 16_384
"""Of a picture for a model, in pixels; a square of them takes 3 GB."""

# What is made of a picture on the way to its size: twice what Pillow opens without a warning.
_MOST_PIXELS = 2 * 89_478_485

_WORDS = {"fit": FITS, "channels": ORDERS, "filter": FILTERS, "layout": LAYOUTS}


@dataclass(frozen=True)
class Numbers:
    """The numbers that a field takes."""

    least: float
    most: float
    whole: bool = False

    def hold(self, value: object) -> bool:
        """Say whether a value is one of them."""
        is_number = isinstance(value, Integral if self.whole else Real)
        return is_number and not isinstance(value, bool) and self.least <= value <= self.most  # type: ignore[operator]

    def __str__(self) -> str:
        kind = "whole numbers" if self.whole else "numbers"
        return f"{kind} from {self.least:,g} to {self.most:,g}"


NUMBERS = {
    "mean": Numbers(-_MOST, _MOST),
    "std": Numbers(1.0 / _MOST, _MOST),
    "factor": Numbers(1.0 / _MOST, _MOST),
    "resize": Numbers(1, MOST_SIDE, whole=True),
    "edge": Numbers(0, MOST_SIDE, whole=True),
    "fill": Numbers(0, 255, whole=True),
}


def check_numbers(field: str, values: Sequence[object], key: str) -> None:
    """Hold each of `values` against what a field takes.

    Raises: OptionError that names `key`, as the user knows the field.
    """
    for value in values:
        if not NUMBERS[field].hold(value):
            raise OptionError(f"`{key}` is {shown(value)}", hint=f"it takes {NUMBERS[field]}")


@dataclass(frozen=True)
class PictureOptions:
    """How a picture becomes an array: value · `factor`, less `mean`, divided by `std`.

    Shapes: `mean` and `std` hold one value, or one a channel, in the order of `channels`.
    `resize` is (height, width); without it the model's own size is taken.

    `fit` says how a picture comes to that size: stretched; its shorter side brought to `edge` (0:
    as it is; without one, to the size) and the middle cut out; or the longer side brought to it
    and the rest filled with `fill`, a value before scaling.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Layout = "nchw"
    resize: tuple[int, int] | None = None
    channels: str = "rgb"
    factor: float = 1.0 / 255.0
    fit: Fit = "stretch"
    edge: int | None = None
    fill: int = 114
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        for name, known in _WORDS.items():
            if getattr(self, name) not in known:
                raise OptionError(
                    f"unknown {name} `{getattr(self, name)}` of pictures",
                    hint=f"known: {', '.join(f'`{word}`' for word in known)}",
                )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, 3):
                raise OptionError(
                    f"`{name}` has {len(values)} values and takes 1 or 3",
                    hint="give one for all channels, or one for each: red, green, blue",
                )
        for name in NUMBERS:
            given = getattr(self, name)
            if given is not None:
                check_numbers(name, given if isinstance(given, tuple) else (given,), name)


class Slot(Protocol):
    """The input that takes a picture: None in `shape` takes any length."""

    @property
    def name(self) -> str:
        """The input's name."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its type of numbers."""

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Its lengths; None where the model leaves even their count open."""


def picture_size(slot: Slot, options: PictureOptions) -> tuple[int, int, int]:
    """Return channels, height and width that the model wants.

    Raises: OptionError where the input takes no pictures, or leaves their size open.
    """
    told = described(slot.dtype, slot.shape)
    if slot.shape is None or len(slot.shape) != 4 or slot.dtype != np.float32:
        raise OptionError(
            f"input `{slot.name}` takes no images: it is {told}",
            hint="images become float32 arrays of four dimensions; give .npy files instead",
        )
    order = (1, 2, 3) if options.layout == "nchw" else (3, 1, 2)
    channels, height, width = (slot.shape[axis] for axis in order)
    if channels not in (1, 3, None):
        raise OptionError(
            f"input `{slot.name}` has {channels} channels in layout `{options.layout}`: {told}",
            hint="images have 1 or 3 channels; is the layout the other one?",
        )
    height, width = options.resize or (height, width)
    if height is None or width is None:
        raise OptionError(
            f"input `{slot.name}` leaves the size of images dynamic: {told}",
            hint="bind it with `--dim`, or give `--resize HEIGHTxWIDTH`",
        )
    return (3 if channels is None else channels), height, width


def read_picture(file: Path, slot: Slot, options: PictureOptions) -> NDArray[np.float32]:
    """Return a picture as the input takes it.

    Shapes: (1, channels, height, width), or (1, height, width, channels).

    Raises: OptionError where the file is no picture that can be read, or does not fit.
    """
    image, unidentified = _pillow()
    channels, height, width = picture_size(slot, options)
    try:
        with image.open(file) as opened:
            picture = _fitted(
                opened.convert("RGB" if channels == 3 else "L"), height, width, options
            )
    except _TooLarge as error:
        raise OptionError(
            f"`{file.name}` is too large: {error}",
            where=str(file),
            hint="take it out of the folder",
        ) from error
    except (unidentified, OSError, SyntaxError, image.DecompressionBombError) as error:
        raise OptionError(
            f"`{file.name}` is not an image that can be read: {error}",
            where=str(file),
            hint="take it out of the folder, or save it again as PNG or JPEG",
        ) from error
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels)
    if options.channels == "bgr":
        pixels = pixels[:, :, ::-1]
    if options.factor == 1.0 / 255.0:
        pixels = pixels / np.float32(255)  # to the last bit what others compute
    else:
        pixels = pixels * np.float32(options.factor)
    mean, std = np.asarray(options.mean, np.float32), np.asarray(options.std, np.float32)
    scaled = (pixels - mean) / std
    if scaled.shape[2] != channels:
        raise OptionError(f"`mean` or `std` has 3 values and `{slot.name}` takes 1 channel")
    ordered = scaled.transpose(2, 0, 1) if options.layout == "nchw" else scaled
    return np.ascontiguousarray(ordered[None], np.float32)


class _TooLarge(Exception):
    """A picture that is, on the way to its size, larger than Pillow would open."""


def _fitted(picture: Any, height: int, width: int, options: PictureOptions) -> Any:
    """Bring a picture of Pillow's to this size."""
    from PIL import Image

    resample = FILTERS.index(options.filter)
    own_width, own_height = picture.size
    if options.fit == "stretch":
        return picture.resize((width, height), resample)
    if options.fit == "crop":
        edge = max(height, width) if options.edge is None else options.edge
        if edge:
            shorter, longer = sorted(picture.size)
            if edge * edge * longer // shorter > _MOST_PIXELS:
                raise _TooLarge(
                    f"its side of {shorter} is brought to {edge}, and that of {longer} as far"
                )
            # The longer side is cut off to a whole number, as in torchvision and transformers.
            size = tuple(edge if n == shorter else int(edge * n / shorter) for n in picture.size)
            picture = picture.resize(size, resample)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        # What lies outside of a smaller picture is black.
        return picture.crop((left, top, left + width, top + height))
    scale = min(height / own_height, width / own_width)
    inner = max(1, round(own_width * scale)), max(1, round(own_height * scale))
    whole = Image.new(picture.mode, (width, height), (options.fill,) * len(picture.getbands()))
    whole.paste(
        picture.resize(inner, resample), ((width - inner[0]) // 2, (height - inner[1]) // 2)
    )
    return whole


def described(dtype: np.dtype[Any], shape: Sequence[int | None] | None) -> str:
    """Return type and shape as messages show them: `float32[?,3,224,224]`."""
    if shape is None:
        return f"{dtype}"
    return f"{dtype}[{','.join('?' if n is None else str(n) for n in shape)}]"


def check_pillow() -> None:
    """Make sure that pictures can be read. Raises: OptionError where Pillow is not installed."""
    _pillow()


def _pillow() -> tuple[Any, type[Exception]]:
    """Return Pillow's module of pictures and what it raises for a file that is none.

    Raises: OptionError where it is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise OptionError(
            "reading images needs Pillow, which is not installed",
            hint="pip install 'vermilion[images]'",
        ) from error
    return Image, UnidentifiedImageError
