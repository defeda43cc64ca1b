"""Machine code from elsewhere is not run: the model that came with it is compiled again, here."""

from __future__ import annotations

from vermilion.backends import MACHINE_CODE
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.runtime.artifact import ArtifactReader
from vermilion.runtime.manifest import Manifest


def runnable(reader: ArtifactReader) -> tuple[ArtifactReader, tuple[str, ...]]:
    """Return a bundle whose machine code may be run here.

    It, or the same compiled again with a note.

    Raises: VermilionError of the kind that says who can fix it.
    """
    reason = "" if reader.is_compiled_here else why_not_run(reader)
    if not reason:
        return reader, ()
    again = recompiled(reader)
    return again, (f"compiled again for {again.manifest.target}: {reason}",)


def why_not_run(reader: ArtifactReader) -> str:
    """Say why the bundle's machine code is not run here, empty where it is or there is none."""
    manifest = reader.manifest
    if not any(part.backend in MACHINE_CODE for part in manifest.parts):
        return ""
    missing = sorted(set(manifest.features) - find_target("cpu").features)
    if missing:
        return f"this machine has no {', '.join(missing)}"
    return reader.why_foreign


def recompiled(reader: ArtifactReader) -> ArtifactReader:
    """Compile the bundle's model again for this machine, once; give the bundle in the cache.

    With the options that it was compiled with: they decide about numbers.

    Raises: VermilionError of the kind that says who can fix it.
    """
    # Only now: whoever opens a bundle of this machine needs no compiler.
    from vermilion.progress import no_progress
    from vermilion.runtime.build import (
        BuildRequest,
        backends_for,
        build_artifact,
        check_provider_options,
    )
    from vermilion.runtime.cache import Cache
    from vermilion.runtime.manifest import tool_versions
    from vermilion.runtime.stored_options import read_options
    from vermilion.store.digest import cache_digest
    from vermilion.version import code_digest

    target = _target_here(reader.manifest)
    stored = read_options(reader.manifest.options, str(reader.path))
    device_backend, cpu_backend, _ = backends_for(target, stored.backend)
    check_provider_options(device_backend, target, stored.compile)
    parts = {
        "bundle": reader.manifest.digest,
        "target": target.name,
        "tools": repr(sorted(tool_versions().items())),
        "compiler": code_digest(),
    }
    request = BuildRequest(
        reader.model(), str(reader.path), target, (device_backend, cpu_backend),
        stored.compile, {}, stored.fix, parts, stored.backend,
    )  # fmt: skip
    entry = Cache().get_or_build(
        cache_digest(parts),
        None,
        lambda folder: build_artifact(request, folder, no_progress),
        parts=parts,
    )
    found = entry.open()
    found.is_compiled_here = True
    return found


def _target_here(manifest: Manifest) -> Target:
    """Return the bundle's own target where this machine is one, else this machine."""
    named, here = find_target(manifest.target), find_target("cpu")
    runs = named.kind != "cpu" or named.features <= here.features
    return named if runs else here
