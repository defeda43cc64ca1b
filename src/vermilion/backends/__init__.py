"""The ways to execute a part, by the short name that stands in manifests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from vermilion.errors import ArtifactError

if TYPE_CHECKING:
    from vermilion.backends.base import Backend

# One line a backend: its name and where its class is. Imported when first asked for, so that a
# backend's libraries cost nothing to whoever does not use it.
BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "native": "vermilion.backends.native:NativeBackend",
        "ort": "vermilion.backends.ort:OrtBackend",
        "vitisai": "vermilion.backends.vitisai.backend:VitisAiBackend",
        "npu_model": "vermilion.backends.npu_model:NpuModelBackend",
        "migraphx": "vermilion.backends.migraphx.backend:MigraphxBackend",
        "iree": "vermilion.backends.iree.backend:IreeBackend",
    }
)

# Backends whose programs are machine code: run only where they were made.
MACHINE_CODE = frozenset({"native", "npu_model", "iree"})


# What parts of language models that are compiled for the C library name as theirs.
DECODER = "decoder"


@cache
def backend(name: str) -> Backend:
    """Return the backend of that name, the same one each time.

    Raises: ArtifactError for a name that this version does not know.
    """
    place = BACKENDS.get(name)
    if name == DECODER:
        raise ArtifactError(
            "this is a language model, compiled for programs in C",
            hint="open it with `vermilion_decoder_open` of the C library; `vermilion llm generate` "
            "runs the model that it was made of",
        )
    if place is None:
        raise ArtifactError(
            f"no backend is called `{name}`",
            hint=f"this version has {', '.join(f'`{known}`' for known in sorted(BACKENDS))}; "
            "compile the model again with this version",
        )
    module, _, class_name = place.partition(":")
    return cast("Backend", getattr(import_module(module), class_name)())
