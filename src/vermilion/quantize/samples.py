"""Calibration data from files: images, `.npy`, `.npz`, or noise where that is asked for by name.

Files are read when their sample is due, one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.arrays import npz_names, read_npy, read_npz
from vermilion.ir.execute import Array
from vermilion.ir.pictures import (
    SUFFIXES,
    Layout,
    PictureOptions,
    check_pillow,
    described,
    picture_size,
    read_picture,
)
from vermilion.quantize.feeds import InputSlot, input_slots

RANDOM = "random"

ARRAY_SUFFIXES = frozenset({".npy", ".npz"})


@dataclass(frozen=True)
class Samples:
    """Calibration data that can be read more than once."""

    source: Path | str
    slots: tuple[InputSlot, ...]
    limit: int
    files: tuple[Path, ...] = ()
    images: PictureOptions = field(default_factory=PictureOptions)
    seed: int = 0
    taken: list[Path] = field(default_factory=list, compare=False)
    """The files of the samples that were read last, one for each."""

    def __iter__(self) -> Iterator[dict[str, Array]]:
        self.taken.clear()
        for number, (file, sample) in enumerate(self._all()):
            if number == self.limit:
                return
            if file is not None:
                self.taken.append(file)
            yield sample

    def __length_hint__(self) -> int:
        """Return how many there are at least: a file holds one sample, or more."""
        return min(self.limit, len(self.files) if self.files else self.limit)

    def _all(self) -> Iterator[tuple[Path | None, dict[str, Array]]]:
        if not self.files:
            rng = np.random.default_rng(self.seed)
            while True:
                yield None, {slot.name: _noise(slot, rng) for slot in self.slots}
        for file in self.files:
            for sample in self._of(file):
                yield file, sample

    def _of(self, file: Path) -> Iterator[dict[str, Array]]:
        if file.suffix.lower() in SUFFIXES:
            yield {self.slots[0].name: read_picture(file, self.slots[0], self.images)}
        elif file.suffix.lower() == ".npy":
            named = {_only(self.slots, file).name: read_npy(file, mapped=True)}
            yield from _split(named, self.slots, file)
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
    images: PictureOptions | None = None,
) -> Samples:
    """Return at most `limit` samples for `model` from `source`.

    `source` is a folder of pictures, a folder of `.npy` or `.npz` files, one such file, or the
    word `random`. `images` says more of pictures than the four before it. A folder of folders is
    read from each in turn, so that the first samples are of all kinds. An array may hold one
    sample, or many along its first axis.

    Raises: OptionError where the source is not there, holds nothing of use, or cannot fit.
    """
    if limit < 1:
        raise OptionError(
            f"the number of samples must be at least 1, got {limit}", hint="32 are usual"
        )
    slots = input_slots(model)
    images = images or PictureOptions(tuple(mean), tuple(std), layout, resize)
    if source == RANDOM:
        _check_random(slots)
        return Samples(RANDOM, slots, limit, seed=seed)
    files = _files_of(Path(source))
    if files[0].suffix.lower() in SUFFIXES:
        picture_size(_only(slots, files[0]), images)
        check_pillow()
    return Samples(Path(source), slots, limit, files, images)


def _files_of(source: Path) -> tuple[Path, ...]:
    if source.is_file() and source.suffix.lower() in ARRAY_SUFFIXES | SUFFIXES:
        return (source,)
    if not source.is_dir():
        wrong = "is not a kind of file that is read" if source.exists() else "does not exist"
        raise OptionError(
            f"calibration data `{source}` {wrong}",
            hint="give a folder of images, of .npy or of .npz files, one such file, or `random`",
        )
    files = sorted(path for path in source.iterdir() if path.is_file())
    if not files:
        inner = [sorted(filter(Path.is_file, p.iterdir())) for p in sorted(source.iterdir())]
        files = [file for row in itertools.zip_longest(*inner) for file in row if file is not None]
    arrays = [path for path in files if path.suffix.lower() in ARRAY_SUFFIXES]
    pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
    if arrays and pictures:
        raise OptionError(
            f"`{source}` holds both images and arrays", hint="keep one kind in the folder"
        )
    if not arrays and not pictures:
        known = ", ".join(sorted(ARRAY_SUFFIXES | SUFFIXES))
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
                f"input `{slot.name}` has dynamic dimensions: {slot.describe()}",
                hint="random data needs sizes: bind them with `--dim`",
            )


def _noise(slot: InputSlot, rng: np.random.Generator) -> Array:
    """Return normal numbers, or zeros and ones: whatever integers stand for, these are legal."""
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
    """Yield the samples that lie along the first axis of the arrays."""
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
        f"input `{slot.name}` got {described(array.dtype, array.shape)} and expected "
        f"{slot.describe()}, or several of them along a first axis",
        where=str(file),
        hint="write the arrays as the model takes them, or bind other sizes with `--dim`",
    )
