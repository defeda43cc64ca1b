"""Putting a finished folder into its place, whole or not at all."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from vermilion.errors import ArtifactError


def swap_in(new: Path, place: Path, old: Path | None = None) -> None:
    """Rename a finished folder into its place; what was there goes only when the new one stands.

    `old` is where the former one lies meanwhile; beside its place unless said otherwise.

    A reader that has the old files mapped keeps them: they are renamed away, then unlinked.
    """
    if not place.exists():
        new.rename(place)
        return
    old = old or place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}.old")
    try:
        place.rename(old)
    except OSError as error:
        raise in_use(place, error) from error
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def in_use(place: Path, error: OSError) -> ArtifactError:
    """Return the error for a bundle that cannot be replaced."""
    # Windows does not rename or remove what a program has mapped.
    return ArtifactError(
        f"the bundle that is there cannot be replaced: {error.strerror or error}",
        where=str(place),
        hint="close the programs that have it open",
    )
