"""Images of decoders in the cache: kept by what is in them, found by what a folder looks like.

An image is named by a digest of the model's bytes and of all else that its own depend on, so that a
copy of a folder finds the image of the first. To open a folder that was opened before, nothing of
it is read: a note, named by a digest of the fingerprints of its files, says which image is its.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.codegen.isa import Isa
from vermilion.files import resolved
from vermilion.llm.engine.image import Image, image_of
from vermilion.store.arrays import arrays_of, write_arrays
from vermilion.store.digest import (
    cache_digest,
    code_fingerprint,
    digest_of_file,
    fingerprint_of,
    folder_fingerprint,
)
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import IMAGES, NOTES
from vermilion.store.store import Store
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
    def note(self) -> str:
        """The key of its note: another one where any file of the folder was touched."""
        config = json.dumps(self.config, sort_keys=True)
        parts = (
            _fingerprint(resolved(self.folder)),
            config,
            self.prefill,
            repr(self.isa),
            code_fingerprint(),
        )
        return sha256(json.dumps(parts).encode()).hexdigest()


def _fingerprint(path: Path) -> str:
    if path.is_file():
        return f"{path}\0{fingerprint_of(path.stat())}"
    return folder_fingerprint(path)


def known_image(opening: Opening) -> Image | None:
    """Return the image of a folder that was opened before and is as it was; None of any other."""
    store = Store(opening.root)
    note = store.find(NOTES, opening.note)
    found = None if note is None else store.find(IMAGES, note.about["key"])
    return None if found is None else image_of(*arrays_of(found))


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
    store = Store(opening.root)
    drafts: list[ImageDraft] = []

    def make(writer: EntryWriter) -> Mapping[str, object] | None:
        drafts.append(draft())
        return _write(store, drafts[0], writer, threads)

    found = store.get_or_make(IMAGES, key, make)
    if found is None:
        return (drafts or [draft()])[0].in_memory(threads)
    store.get_or_make(NOTES, opening.note, lambda _: {"key": key})
    return image_of(*arrays_of(found))


def _write(
    store: Store, draft: ImageDraft, writer: EntryWriter, threads: int
) -> Mapping[str, object] | None:
    """Write an image, unless the disk would be full.

    Raises: OSError.
    """
    free = store.free_bytes()
    if free < 2 * draft.size_bytes:
        _log.warning(
            "packed weights of %.1f GB are not kept: `%s` has %.1f GB of room",
            draft.size_bytes / 1e9, store.root, free / 1e9,
        )  # fmt: skip
        return None
    return write_arrays(writer, draft.arrays, draft.about, threads)
