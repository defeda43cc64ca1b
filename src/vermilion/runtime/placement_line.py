"""Where a model runs, in one line; and where a name says that it is to run.

Read from a bundle's report, so that it needs no library of graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vermilion.hardware.targets.find import find_target
from vermilion.runtime.artifact import ArtifactReader
from vermilion.runtime.report import Row, read_report

# The backend that takes what a target does not.
_LEFT_TO = "ort"
# What runs a model file as it is; every other place is a target that it is compiled for.
ONNX_RUNTIME = ("onnxruntime", "ort")


def named_place(what: str) -> tuple[Path, str]:
    """Take a name and what stands behind its last `@` apart; a file of the whole name has none."""
    file, at, place = what.rpartition("@")
    return (Path(what), "") if not (at and place) or Path(what).exists() else (Path(file), place)


def placement_line(
    nodes: Sequence[Row], target: str, *, on_cpu: bool, modelled: bool = False
) -> str:
    """Return it for the rows of a report: `122 of 122 operators native`."""
    left = [row for row in nodes if _is_left(row, on_cpu)]
    native = len(nodes) - len(left)
    place = "" if on_cpu else f" on {target}"
    words = f"{native} of {len(nodes)} operators native{place}{' (modelled)' * modelled}"
    return f"{words}; {_why(left)}" if left else words


def told(notes: Sequence[str], placement: str) -> tuple[str, ...]:
    """Return what a verb warns of: the notes, or the line itself where nothing at all is native."""
    got_nothing = placement.startswith("0 of ") and not placement.startswith("0 of 0 ")
    return tuple(notes) or ((placement,) if got_nothing else ())


def bundle_line(reader: ArtifactReader) -> str:
    """Return it for an open bundle."""
    target = reader.manifest.target
    return placement_line(
        read_report(reader).nodes,
        target,
        on_cpu=find_target(target).kind == "cpu",
        modelled=any(part.modelled for part in reader.manifest.parts),
    )


def _is_left(row: Row, on_cpu: bool) -> bool:
    """Say whether a node is ONNX Runtime's, or was not seen on the device that its part is for."""
    return row.get("backend") == _LEFT_TO or (not on_cpu and row.get("device") == "cpu")


def _why(left: Sequence[Row]) -> str:
    """Say what is left to ONNX Runtime, with the reason that most of it has."""
    reasons = Counter((str(row.get("reason", "")), str(row.get("hint", ""))) for row in left)
    (reason, hint), count = reasons.most_common(1)[0]
    is_ours = all(row.get("backend") == _LEFT_TO for row in left)
    words = f"{len(left)} {'in ONNX Runtime' if is_ours else 'on the CPU'}"
    if reason:
        words += f": {reason}"
    if hint:
        words += f" ({hint})"
    if len(reasons) > 1:
        others = f"{len(reasons) - 1} other reason{'s' * (len(reasons) > 2)}"
        words += f"; {len(left) - count} of them for {others}"
    return words
