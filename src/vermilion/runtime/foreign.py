"""Telling another tool's compiled model from ours, so that it is named and not misread."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from vermilion.errors import ArtifactError

_HINT = (
    "give the ONNX model to `vermilion compile`; a cache of AMD's provider is used by opening "
    "the model with its `cache_dir` and `cache_key` options"
)


def refuse_foreign_folder(folder: Path) -> NoReturn:
    """Raise ArtifactError where a folder without our manifest is recognised, or is none of ours.

    Source of the signs: the public VAIP code (`context.json`, `*.xmodel`) and AMD's page on the
    compiled model's folder (`vaiml_par_0/`, the single file of the cache key's name).
    """
    sign = _vendor_sign(folder)
    if sign:
        raise ArtifactError(
            f"this is a cache folder of AMD's VitisAI provider (it has `{sign}`), not a Vermilion "
            "bundle",
            where=str(folder),
            hint=_HINT,
        )
    raise ArtifactError(
        "this folder is not a compiled model: it has no `manifest.json`",
        where=str(folder),
        hint="compile a model with `vermilion compile MODEL --target T`",
    )


def refuse_foreign_archive(path: Path, first_name: str | None) -> NoReturn:
    """Raise ArtifactError for a file that does not begin with our manifest.

    `first_name` is that of the first file inside, None where the file is no ZIP at all.
    """
    is_vendors = first_name is not None and any(
        _is_vendor_name(part) for part in (first_name, first_name.partition("/")[2])
    )
    if is_vendors or (path.suffix == ".rai" and first_name is None):
        sign = f" (it has `{first_name}`)" if is_vendors else ""
        raise ArtifactError(
            f"this file is not a Vermilion bundle{sign}; AMD's VitisAI provider writes `.rai` "
            "files too",
            where=str(path),
            hint=_HINT,
        )
    kind = "another kind of file"
    if first_name is not None:
        kind = "a ZIP that does not begin with `manifest.json`"
    raise ArtifactError(
        f"this is not a compiled model but {kind}",
        where=str(path),
        hint="compile a model with `vermilion compile MODEL -o NAME.rai`",
    )


def _vendor_sign(folder: Path) -> str:
    for entry in sorted(folder.iterdir()):
        if _is_vendor_name(entry.name) or entry.name == f"{folder.name}.rai":
            return entry.name
        if entry.name.startswith("vaiml_par_") and (entry / "0").is_dir():
            return f"{entry.name}/0"
    return ""


def _is_vendor_name(name: str) -> bool:
    first, _, rest = name.partition("/")
    return (
        first in {"context.json", "preliminary-vaiml-pass-summary.txt"}
        or first.startswith("vaiml_partition_fe")
        or name.endswith(".xmodel")
        or (first.startswith("vaiml_par_") and rest.startswith("0/"))
    )
