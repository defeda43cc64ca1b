"""A model → a library, one path: compile for each target, link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vermilion.ahead.link import SUFFIXES, Library, link
from vermilion.api import Compiled
from vermilion.errors import OptionError
from vermilion.runtime.artifact import open_artifact


def is_library(output: Path | None) -> bool:
    """Say whether a file is to be a library, by its ending."""
    return output is not None and output.suffix in SUFFIXES


def link_compiled(compiled: Sequence[Compiled], output: Path) -> Library:
    """Write a library of a model that was compiled for one target or several.

    Raises: OptionError for targets that are no processor; what `link` raises.
    """
    for one in compiled:
        if one.target.kind != "cpu":
            raise OptionError(
                f"a library is for processors, and `{one.target.name}` is none",
                hint="`vermilion compile MODEL --target zen4 -o NAME.so`",
            )
    return link([open_artifact(one.artifact) for one in compiled], output)
