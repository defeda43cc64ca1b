"""Options that several verbs share, and the reading of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vermilion.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=VALUE",
        help="Fix a symbolic dimension (`batch=1`) or an input's shape (`x=1x3x48x320`). "
        "May be repeated.",
    ),
]
Mean = Annotated[
    str | None,
    typer.Option("--mean", metavar="0.485,0.456,…", help="Subtracted from pixel values ÷ 255."),
]
Std = Annotated[
    str | None,
    typer.Option("--std", metavar="0.229,0.224,…", help="What they are divided by then."),
]
ResizeTo = Annotated[
    str | None,
    typer.Option("--resize", metavar="224x224", help="Resize images to this height and width."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE.npy|FILE.npz|FOLDER",
        help="Take one input from a .npy file, or several by name from a .npz or a folder that "
        "--output wrote. May be repeated.",
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="The folder of compiled models; without it, the one in the user's cache folder.",
    ),
]

Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        metavar="N",
        min=0,
        help="Threads of the CPU; 0: as many as this process may keep busy.",
    ),
]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?B?)", re.ASCII)


def parse_size(text: str) -> int:
    """Read a number of bytes: `2GB`, `500 MB`, `1.5gb`, `4096`.

    Raises: OptionError.
    """
    found = _SIZE.fullmatch(text.strip().upper())
    if found is None or found[2] not in _UNITS:
        raise OptionError(
            f"`{text}` is not a size", hint="write `2GB`, `500MB` or a number of bytes"
        )
    size = float(found[1]) * _UNITS[found[2]]
    if not math.isfinite(size):
        raise OptionError(f"`{text[:20]}…` is more than any disk has", hint="write `2GB`")
    return int(size)


def bytes_for_people(size_bytes: int) -> str:
    """Return a size in the largest unit that leaves a number of 1 or more: `12.3 MB`."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.1f} {unit}"
    return f"{size_bytes} B"


def counted(number: int, what: str) -> str:
    """Return a number with what it counts: `1 node`, `2,000 nodes`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def parse_dims(words: Sequence[str] | None) -> dict[str, int | tuple[int, ...]]:
    """Read `--dim` values: one number for a dimension, `1x3x48x320` for a whole input.

    Raises: OptionError.
    """
    dims: dict[str, int | tuple[int, ...]] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise OptionError(
                f"`--dim {word}` is not NAME=VALUE",
                hint="write `--dim batch=1` or `--dim x=1x3x48x320`",
            )
        if name in dims:
            raise OptionError(f"`--dim` gives `{name}` twice")
        sizes = parse_shape(value, where=f"--dim {word}")
        dims[name] = sizes if "x" in value else sizes[0]
    return dims


def parse_pairs(words: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read NAME=VALUE words of an option. Raises: OptionError."""
    pairs: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not (name and equals) or name in pairs:
            what = "names an option twice" if name in pairs else "is not NAME=VALUE"
            raise OptionError(
                f"`{word}` {what}",
                where=option,
                hint=f"write `{option} fp16_enable=1`",
            )
        pairs[name] = value
    return pairs


def parse_shape(text: str, *, where: str) -> tuple[int, ...]:
    """Read a shape written as `1x3x224x224`.

    Raises: OptionError where a size is no whole number above zero.
    """
    sizes = whole_numbers(text, "x")
    if sizes is None:
        raise OptionError(
            f"`{text}` is not a shape",
            where=where,
            hint="write whole numbers above zero with `x` between them: `1x3x224x224`",
        )
    return sizes


# A size is 64 bits with a sign in ONNX and in numpy.
_LARGEST_SIZE = 2**63 - 1


def whole_numbers(text: str, between: str = ",") -> tuple[int, ...] | None:
    """Return the numbers of a list such as `1,8`; None where one is not from 1 to 2**63 - 1."""
    words = [word.strip() for word in text.split(between)]
    # Digits are counted first: Python refuses to read thousands of them.
    if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
        return None
    numbers = tuple(int(word) for word in words)
    return numbers if all(0 < number <= _LARGEST_SIZE for number in numbers) else None


def load_inputs(words: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """Read `--input` values: `NAME=FILE.npy`, or `FILE.npz` with an array for each name.

    Raises: OptionError, also for files that hold pickled objects: those can run code.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for word in words or ():
        for name, array in _load_one(word).items():
            if name in arrays:
                raise OptionError(f"input `{name}` is given twice", where=f"--input {word}")
            arrays[name] = array
    return arrays


def _load_one(word: str) -> dict[str, NDArray[Any]]:
    from vermilion.ir.arrays import read_npy
    from vermilion.ir.value_files import read_values

    if Path(word).is_dir() or (word.lower().endswith(".npz") and Path(word).is_file()):
        return read_values(Path(word))
    name, equals, file = word.partition("=")
    if name and equals and file.lower().endswith(".npy"):
        return {name: read_npy(Path(file))}
    if word.lower().endswith(".npz"):
        raise OptionError("no such file", where=word, hint="check the path")
    if word.lower().endswith(".npy") and not equals:
        raise OptionError(
            "a .npy file has no name for its array",
            where=f"--input {word}",
            hint=f"say which input it is: `--input NAME={word}`",
        )
    raise OptionError(
        f"`--input {word}` is neither NAME=FILE.npy nor FILE.npz, nor a folder of such",
        hint="save arrays with `numpy.save` or, by name, with `numpy.savez`",
    )
