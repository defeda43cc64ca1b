"""A compiled bundle as one thing to run: arrays by name in, arrays by name out.

Loads no library of graphs, so that running a compiled model begins at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vermilion.backends.base import Array
from vermilion.runtime.session import Session


@dataclass(frozen=True)
class BundleRunner:
    """How a bundle runs. `modelled` says that a device is imitated, and its time means nothing."""

    runs_on: str
    run: Callable[[Mapping[str, Array]], dict[str, Array]]
    modelled: bool
    notes: tuple[str, ...]


def is_artifact(path: Path) -> bool:
    """Say whether `path` is a compiled bundle: a folder or a `.rai`."""
    return path.is_dir() or path.suffix == ".rai"


def open_bundle_runner(artifact: Path) -> BundleRunner:
    """Open a bundle to run it as it is compiled."""
    session = Session(artifact)
    names = [output.name for output in session.get_outputs()]

    def run(given: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(names, session.run(names, given), strict=True))

    places = sorted({place.partition(": ")[2] for place in session.runs_on})
    modelled = any(part.modelled for part in session.manifest.parts)
    return BundleRunner("; ".join(places), run, modelled, session.notes)
