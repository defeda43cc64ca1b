"""Handing a command over to the vendor's own tool, where Ryzen AI is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from vermilion.errors import DeviceError, OptionError

With = Literal["vermilion", "vendor"]


@dataclass(frozen=True)
class VendorRun:
    """Which program ran, with which words, and how it ended."""

    program: str
    words: tuple[str, ...]
    exit_code: int


def is_for_vendor(value: str) -> bool:
    """Read `--with`.

    Raises: OptionError.
    """
    if value not in get_args(With):
        raise OptionError(f"`--with {value}`", hint=f"one of {', '.join(get_args(With))}")
    return value == "vendor"


def run_vendor_tool(name: str, words: Sequence[str]) -> VendorRun:
    """Run the vendor's tool; what it prints goes to stderr as it comes.

    Raises: DeviceError where it is not installed, or cannot be started.
    """
    program = shutil.which(name)
    if program is None:
        raise DeviceError(
            f"the vendor's `{name}` is not on the path",
            hint="activate the environment of Ryzen AI (`conda activate ryzen-ai-1.7.1`), or leave"
            " `--with vendor` out",
        )
    try:
        done = subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False
        )
    except OSError as error:
        raise DeviceError(
            f"the vendor's `{name}` cannot be started: {error.strerror or error}", where=program
        ) from error
    return VendorRun(program, tuple(words), done.returncode)
