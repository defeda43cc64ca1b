"""Pictures as inputs, of which one that cannot be read does not keep the others from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vermilion.backends.base import Array
from vermilion.batch.job import Slot
from vermilion.errors import OptionError
from vermilion.ir.pictures import PictureOptions, read_picture


def read_pictures(
    paths: Mapping[int, Path], slot: Slot, options: PictureOptions
) -> tuple[dict[int, Array], dict[int, str]]:
    """Return a row for each image that can be read, by number, and why the rest cannot.

    `slot` has an open first dimension.
    """
    rows: dict[int, Array] = {}
    failed: dict[int, str] = {}
    for at, path in paths.items():
        try:
            rows[at] = read_picture(path, slot, options)
        except OptionError as error:
            failed[at] = error.message
    return rows, failed
