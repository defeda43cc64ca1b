"""Pictures as inputs, read as calibration reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vermilion.backends.base import Array
from vermilion.batch.job import PictureOptions, Slot
from vermilion.errors import OptionError
from vermilion.quantize.feeds import InputSlot
from vermilion.quantize.samples import ImageOptions, Samples


def image_options(options: PictureOptions) -> ImageOptions:
    """Give the options as the reader of calibration data takes them.

    Raises: OptionError for a layout, a mean or a deviation that makes no sense.
    """
    return ImageOptions(options.mean, options.std, options.layout, options.resize)


def read_pictures(
    paths: Mapping[int, Path], slot: Slot, options: PictureOptions
) -> tuple[dict[int, Array], dict[int, str]]:
    """Give an array of one row for each picture that can be read, by number, and why not the rest.

    `slot` has an open first dimension.
    """
    slots = (InputSlot(slot.name, slot.dtype, slot.shape),)
    images = image_options(options)
    rows: dict[int, Array] = {}
    failed: dict[int, str] = {}
    for at, path in paths.items():
        try:
            (sample,) = Samples(path.parent, slots, 1, (path,), images)
            rows[at] = sample[slot.name]
        except OptionError as error:
            failed[at] = error.message
    return rows, failed
