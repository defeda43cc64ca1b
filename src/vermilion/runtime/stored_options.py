"""The options that a bundle was compiled with, in its manifest and back: for compiling it again.

Each is a string; one that a bundle of an earlier release does not have is what it was by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.backends.base import CompileOptions
from vermilion.errors import ArtifactError
from vermilion.ir.passes.bind_dimensions import Dimensions

_HINT = "the bundle is damaged: compile the model again"


@dataclass(frozen=True)
class StoredOptions:
    """What decides numbers. `backend` is empty where nobody asked for one by name."""

    compile: CompileOptions
    fix: bool
    backend: str


def options_to_store(
    options: CompileOptions, *, fix: bool, backend: str, dims: Dimensions
) -> dict[str, str]:
    """Return what goes into the manifest.

    `dims` are for whoever reads it: the model in the bundle has them already.
    """
    return {
        "precision": options.precision,
        "winograd": str(options.winograd),
        "fix": str(fix),
        "backend": backend,
        "provider_options": json.dumps(dict(options.provider_options), sort_keys=True),
        "dims": json.dumps(dict(dims), sort_keys=True, default=list),
    }


def read_options(stored: Mapping[str, str], where: str) -> StoredOptions:
    """Read what `options_to_store` gave. Raises: ArtifactError."""
    return StoredOptions(
        CompileOptions(
            precision=stored.get("precision", "auto"),
            winograd=_flag(stored, "winograd", where, default=True),
            provider_options=_texts(stored, "provider_options", where),
        ),
        fix=_flag(stored, "fix", where, default=False),
        backend=stored.get("backend", ""),
    )


def _flag(stored: Mapping[str, str], name: str, where: str, *, default: bool) -> bool:
    text = stored.get(name, str(default))
    if text not in ("True", "False"):
        raise ArtifactError(f"its option `{name}` is `{text[:40]}`", where=where, hint=_HINT)
    return text == "True"


def _texts(stored: Mapping[str, str], name: str, where: str) -> dict[str, str]:
    try:
        found = json.loads(stored.get(name, "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ArtifactError(f"its option `{name}` cannot be read", where=where, hint=_HINT)
    return found
