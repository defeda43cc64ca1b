"""The options of one session: the precision's, the cache's, and the user's own, held to the build.

The provider names its compiled programs after the model's file name and shapes, and neither after
its weights nor after its precision (onnxruntime/onnxruntime-ep-amdgpu, src/migraphx/mgx_utils.cc,
`GenerateGraphId`). So it gets a folder whose name covers everything that matters, and nobody else
may name one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vermilion.backends.base import Array
from vermilion.backends.migraphx.found import Stack
from vermilion.errors import OptionError
from vermilion.hardware.options.gpu import PLUGIN
from vermilion.hardware.options.lint import lint
from vermilion.hardware.options.option import OptionSet, Setting

CONTEXT_FILE = "context.onnx"
NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
_SESSION_PREFIXES = ("session.", "ep.")
_CACHE_OPTIONS = {PLUGIN: "cache_dir"}
_BUILT_IN_CACHE = "migraphx_model_cache_dir"
# The linter's words on a cache folder are ours to heed.
_OURS = frozenset(("gpu.no-cache", "gpu.cache-shared"))


@dataclass(frozen=True)
class SessionOptions:
    """What a session is opened with, apart from the folder of its cache."""

    provider: Mapping[str, str]
    entries: Mapping[str, str]


def session_options(stack: Stack, precision: str, wanted: Mapping[str, str]) -> SessionOptions:
    """Return the options for a precision, and the user's own where the build takes them.

    Raises: OptionError for what the build does not take, with the corrected form.
    """
    entries = {k: v for k, v in wanted.items() if k.startswith(_SESSION_PREFIXES)}
    mine = {k: v for k, v in wanted.items() if k not in entries}
    _refuse_cache(stack, mine)
    prefix = "" if stack.build == PLUGIN else "migraphx_"
    options = {"device_id": str(stack.device_number)}
    if precision == "fp16":
        options[_taken(stack, f"{prefix}fp16_enable")] = "1"
    linted = lint(OptionSet(stack.provider, mine), Setting(build=stack.build))
    wrong = [p for p in linted.problems if p.level == "error" and p.id not in _OURS]
    if wrong:
        raise OptionError(
            "; ".join(problem.what for problem in wrong),
            where=f"--provider-option, {stack.table.title}",
            hint="; ".join(f"{p.option}: {p.fix}" if p.option else p.fix for p in wrong),
        )
    return SessionOptions({**options, **linted.corrected.options}, entries)


def _taken(stack: Stack, name: str) -> str:
    if stack.table.find(name) is None:
        raise OptionError(
            f"the {stack.table.title} has no option for float16",
            where="--precision fp16",
            hint="convert the model itself, or use the MIGraphX provider",
        )
    return name


def _refuse_cache(stack: Stack, wanted: Mapping[str, str]) -> None:
    for name in (cache_option(stack.build), _BUILT_IN_CACHE, "cache_dir"):
        if name in wanted:
            raise OptionError(
                f"`{name}` is not yours to set: each model and precision has a folder of its own",
                where="--provider-option",
                hint="`--cache-dir` says where compiled models go",
            )


def cache_option(build: str) -> str:
    """Return the name under which a build takes the folder of compiled programs."""
    return _CACHE_OPTIONS.get(build, _BUILT_IN_CACHE)


def with_folder(options: SessionOptions, stack: Stack, folder: str) -> dict[str, str]:
    """Return the provider's options with the folder of its compiled programs."""
    return {**options.provider, cache_option(stack.build): folder}


def content_key(
    serialized: bytes, weights: Mapping[str, Array], options: SessionOptions, stack: Stack
) -> str:
    """Return the name of the provider's cache folder: of graph, weights, options and versions.

    What the provider leaves out of its own names is in this one.
    """
    state = hashlib.sha256()

    def put(data: bytes | memoryview) -> None:
        state.update(struct.pack("<Q", len(data)))
        state.update(data)

    put(serialized)
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        put(f"{name} {array.dtype.str} {array.shape}".encode())
        put(array.reshape(-1).view(np.uint8).data if array.size else b"")
    for pairs in (options.provider, options.entries, stack.as_details()):
        put(repr(sorted(pairs.items())).encode())
    return state.hexdigest()
