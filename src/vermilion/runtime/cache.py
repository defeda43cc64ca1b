"""Compiled models in the store, by what they were compiled from.

A key is the name of a folder; whether the folder holds what is asked for is decided by the
digest inside, and by this user's signature: what somebody else put there is compiled again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ArtifactError, OptionError, Refusal
from vermilion.runtime.artifact import ArtifactReader, is_replaceable, open_artifact
from vermilion.runtime.bundle import refuse_foreign_folder
from vermilion.runtime.manifest import MANIFEST_FILE, Manifest, is_ours
from vermilion.runtime.names import check_key
from vermilion.store.namespaces import SIGNED, Facts, Namespace
from vermilion.store.store import Store

_KEY_DIGITS = 32  # 128 bits name a folder; all 256 inside decide
_NOT_OURS = "it was not written by this user here, or was changed since"


def _is_bundle(path: Path) -> bool:
    # Not any folder that has a file of that name.
    return (path / MANIFEST_FILE).is_file() and is_replaceable(path)


def _problem(path: Path) -> str:
    try:
        manifest = open_artifact(path).manifest
    except ArtifactError as error:
        return error.message
    return "" if is_ours(manifest) else _NOT_OURS


def _facts(path: Path) -> Facts:
    manifest = open_artifact(path, verify=False).manifest
    return {
        "digest": manifest.cache_digest,
        "target": manifest.target,
        "created": manifest.created,
        "parts": len(manifest.parts),
    }


BUNDLES = Namespace("", "compiled model", MANIFEST_FILE, _is_bundle, _problem, _facts)
NAMESPACES = (BUNDLES, *SIGNED)
"""All that a cache holds."""


@dataclass(frozen=True)
class CachedModel:
    """What `get_or_build` returns: the bundle's folder, whether it was there, and why not."""

    path: Path
    key: str
    digest: str
    hit: bool
    reason: str

    def open(self, *, verify: bool = False) -> ArtifactReader:
        """Open the bundle; it was verified a moment ago.

        Raises: ArtifactError where another process has put another model under this key since.
        """
        reader = open_artifact(self.path, verify=verify)
        if reader.manifest.cache_digest != self.digest:
            raise ArtifactError(
                f"the cache key `{self.key}` was given to another model meanwhile",
                where=str(self.path),
                hint="give each model its own `--cache-key`, or none",
            )
        return reader


class Cache:
    """A folder of compiled models, in the `store` with all else that is kept."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.store = Store(root, NAMESPACES)
        self.root = self.store.root

    def get_or_build(
        self,
        digest: str,
        key: str | None,
        build: Callable[[Path], None],
        *,
        parts: Mapping[str, str] | None = None,
    ) -> CachedModel:
        """Return the bundle that was compiled from what `digest` stands for; make it if need be.

        `build` gets a folder that does not exist yet and must write a bundle there. `parts`, the
        mapping that `digest` is of, lets the reason name what has changed.

        Raises: OptionError for a key that cannot be a folder, ArtifactError where the folder of
        that name holds something else, and whatever `build` raises; what was there before stays.
        """
        name = digest[:_KEY_DIGITS] if key is None else _checked(key)
        place = self.store.place(BUNDLES, name)

        def read(place: Path) -> Manifest | Refusal:
            return _held(place, digest, parts)

        def write(folder: Path) -> bool:
            _check_free(place, named=key is not None)
            build(folder)
            _check_built(folder, name, digest)
            return True

        found, reason = self.store.get_or_write(BUNDLES, name, read, write)
        if found is None:
            return CachedModel(place, name, digest, hit=False, reason=reason)
        reason = "compiled before from the same inputs"
        return CachedModel(place, name, digest, hit=True, reason=reason)

    def find(self, digest: str) -> Path | None:
        """Return where the bundle of a digest lies under its own key, None where there is none."""
        name = digest[:_KEY_DIGITS]
        place = self.store.place(BUNDLES, name)
        if isinstance(_held(place, digest, None), Refusal):
            return None
        self.store.touch(BUNDLES, name)
        return place

    def forget(self, key: str) -> None:
        """Remove the entry of a key, or of a digest's own key, if it is there."""
        name = _checked(key[:_KEY_DIGITS] if len(key) == 64 else key)
        if (self.store.place(BUNDLES, name) / MANIFEST_FILE).is_file():
            self.store.remove(BUNDLES, name)


def _checked(key: str) -> str:
    """Return a cache key that can be the name of a folder, and is not that of a namespace.

    Raises: OptionError.
    """
    if key in (namespace.name for namespace in SIGNED):
        raise OptionError(
            f"the cache key `{key}` is a folder of the cache's own",
            hint="choose another `--cache-key`",
        )
    return check_key(key)


def _check_free(place: Path, *, named: bool) -> None:
    """Check that nothing of somebody else lies where a bundle is to be put.

    Raises: ArtifactError.
    """
    if place.exists() and not place.is_dir():
        raise ArtifactError(
            f"there is something called `{place.name}` that is not a folder",
            where=str(place.parent),
            hint="choose another `--cache-key`",
        )
    if named and place.exists() and not is_replaceable(place):
        refuse_foreign_folder(place)


def _check_built(folder: Path, name: str, digest: str) -> None:
    written = open_artifact(folder, verify=False).manifest.cache_digest
    if written != digest:
        raise ArtifactError(
            "the bundle that was compiled has another digest than was asked for",
            where=name,
            hint="report this as a bug of Vermilion",
        )


def _held(place: Path, digest: str, parts: Mapping[str, str] | None) -> Manifest | Refusal:
    """Return the manifest of an entry that is whole, of that digest, and this user's."""
    if not place.exists():
        return Refusal("not compiled before")
    try:
        manifest = open_artifact(place).manifest
    except ArtifactError as error:
        return Refusal(f"the entry could not be used: {error.message}")
    if not is_ours(manifest):
        return Refusal(f"the entry could not be used: {_NOT_OURS}")
    if manifest.cache_digest != digest:
        return Refusal(f"key `{place.name}` {_difference(manifest, parts)}")
    return manifest


def _difference(manifest: Manifest, parts: Mapping[str, str] | None) -> str:
    """Say what the entry was compiled from that is not what is asked for."""
    stored = manifest.cache_parts
    changed = sorted(
        part for part in {*stored, *(parts or {})} if stored.get(part) != (parts or {}).get(part)
    )
    if parts is None or "model" in changed:
        return "held another model"
    return f"held this model compiled with another {', '.join(f'`{part}`' for part in changed)}"
