"""Images of decoders in the cache: kept by what is in them, found by what a folder looks like.

An image is named by a digest of the model's bytes and of all else that its own depend on, so that a
copy of a folder finds the image of the first. To open a folder that was opened before, nothing of
it is read: a note, named by a digest of the fingerprints of its files, says which image is its.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.codegen.isa import Isa
from vermilion.llm.engine.image import Image, image_of
from vermilion.runtime.array_folder import open_arrays, touch, write_arrays
from vermilion.runtime.engine_cache import IMAGES, NOTES, free_bytes, locked, new_folder, swap_kept
from vermilion.runtime.keys import cache_digest
from vermilion.store.chunked_digest import digest_of_file
from vermilion.store.file_fingerprint import code_fingerprint, folder_fingerprint
from vermilion.store.signature import is_signed_here, signature_of
from vermilion.version import code_digest

if TYPE_CHECKING:
    from vermilion.llm.engine.build_image import ImageDraft

_KEY_DIGITS = 32  # 128 bits name a folder
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """A folder that is opened: as what its configuration was read, for which prompts, and where."""

    folder: Path
    config: Mapping[str, object]
    prefill: str  # as it was asked for
    isa: Isa
    root: Path  # of the cache

    @cached_property
    def note(self) -> Path:
        """The note of the image: another one where any file of the folder was touched."""
        config = json.dumps(self.config, sort_keys=True)
        parts = (
            folder_fingerprint(self.folder.resolve()),
            config,
            self.prefill,
            repr(self.isa),
            code_fingerprint(),
        )
        return self.root / NOTES / f"{sha256(json.dumps(parts).encode()).hexdigest()}.txt"


def known_image(opening: Opening) -> Image | None:
    """Return the image of a folder that was opened before and is as it was; None of any other."""
    try:
        key, seal = opening.note.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    if not is_signed_here(_note_digest(opening, key), seal):
        return None
    return _open(opening.root / IMAGES / key)


def kept_image(
    opening: Opening, files: Iterable[Path], prefill: str, draft: Callable[[], ImageDraft],
    threads: int,
) -> Image:  # fmt: skip
    """Return the image of a model, made and kept if need be; from memory where it cannot be kept.

    `files` hold the model's bytes, `prefill` is in which numbers prompts are multiplied.
    """
    parts = {
        "files": json.dumps([digest_of_file(path) for path in files]),
        "prefill": prefill,
        "isa": repr(opening.isa),
        "compiler": code_digest(),
    }
    key = cache_digest(parts)[:_KEY_DIGITS]
    place = opening.root / IMAGES / key
    found = _open(place)
    if found is None and signature_of(key):
        try:
            with locked(opening.root, f"{IMAGES}-{key}"):
                found = _open(place) or _made(place, draft(), threads)
        except OSError as error:
            _log.warning("packed weights cannot be kept: %s", error)
    if found is None:
        return draft().in_memory(threads)
    _note(opening, key)
    return found


def _open(place: Path) -> Image | None:
    found = open_arrays(place)
    if found is None or found[1].get("key") != place.name:  # the image of another model
        return None
    touch(place)
    return image_of(*found)


def _made(place: Path, draft: ImageDraft, threads: int) -> Image | None:
    """Write an image aside and rename it. The caller holds the lock.

    Raises: OSError.
    """
    free = free_bytes(place)
    if free < 2 * draft.size_bytes:
        _log.warning(
            "packed weights of %.1f GB are not kept: `%s` has %.1f GB of room",
            draft.size_bytes / 1e9, place.parent, free / 1e9,
        )  # fmt: skip
        return draft.in_memory(threads)
    with new_folder(place) as aside:
        write_arrays(aside, draft.arrays, {**draft.about, "key": place.name}, threads)
        swap_kept(aside, place)
    return _open(place)


def _note(opening: Opening, key: str) -> None:
    """Note which image is the folder's. What was touched meanwhile has another note."""
    seal = signature_of(_note_digest(opening, key))
    new = opening.note.with_name(f".{opening.note.name}.{os.getpid()}")
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(f"{key} {seal}", encoding="ascii")
        new.replace(opening.note)
    except OSError as error:
        _log.debug("`%s` cannot be written: %s", opening.note, error)


def _note_digest(opening: Opening, key: str) -> str:
    return f"{opening.note.name} {key}"
