"""A model → a library, one path: compile for each target, link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vermilion.ahead.link import SUFFIXES, Library, link
from vermilion.api import Compiled
from vermilion.errors import OptionError
from vermilion.hardware.targets.find import find_target
from vermilion.runtime.artifact import open_artifact


def is_library(output: Path | None) -> bool:
    """Say whether a file is to be a library, by its ending."""
    return output is not None and output.suffix in SUFFIXES


def compile_library(
    compile_for: Callable[[str], Compiled], targets: str, output: Path
) -> tuple[Compiled, Library]:
    """Compile a model for each of `zen2,zen4,zen5`, and write one library of them.

    `compile_for` compiles it for one target. Return what the first of them gave, and the library.

    Raises: OptionError for targets that are no processors; what compiling and `link` raise.
    """
    names = list(dict.fromkeys(filter(None, map(str.strip, targets.split(",")))))
    for name in names:
        if find_target(name).kind != "cpu":
            raise OptionError(
                f"a library is for processors, and `{name}` is none",
                where=str(output),
                hint="`vermilion compile MODEL --target zen4 -o NAME.so`",
            )
    compiled = [compile_for(name) for name in names]
    if not compiled:
        raise OptionError("no target is named", where="--target")
    return compiled[0], link([open_artifact(one.artifact) for one in compiled], output)
