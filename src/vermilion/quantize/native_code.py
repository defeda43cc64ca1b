"""Small functions in LLVM's language as machine code for this CPU, ready to be called.

What was compiled is kept in the user's cache, as `calibration/KEY/code.o`, and the key says all
that it depends on: compiling takes a tenth of what quantizing a small network does. Only what this
user's seal stands before is run.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.load import load_object
from vermilion.codegen.object import compile_object
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import resolve_cpu
from vermilion.store.cache_dir import default_root
from vermilion.store.signature import signed_bytes, unsigned_bytes

_log = logging.getLogger(__name__)

KIND, FILE = "calibration", "code.o"
"""Folder below the cache, and the file in each folder there: seal, then object code."""

LANES = 16
"""Numbers in a vector: float32 in a register of 512 bits; narrower processors take several."""

_KEY_DIGITS = 32  # 128 bits name a folder

_C_TYPES: Mapping[str, Any] = {
    "void": None,
    "ptr": ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "i32": ctypes.c_uint32,
    "float": ctypes.c_float,
}


def new_module() -> Module:
    """Return an empty module for this processor."""
    return Module(has_bf16=this_isa().has_bf16)


def wide_isa() -> Isa:
    """Return this processor as one whose vectors have `LANES` numbers."""
    return replace(this_isa(), lanes=LANES)


def compiled(*functions: Function) -> dict[str, Callable[..., Any]]:
    """Return functions of one module by name, ready to be called."""
    kinds = {
        f.name: ctypes.CFUNCTYPE(_C_TYPES[f.result], *(_C_TYPES[a.type] for a in f.arguments))
        for f in functions
    }
    return machine_code(functions[0].module.text(), kinds)


def machine_code(text: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions of `text` by name; `kinds` holds the ctypes function type of each."""
    isa = this_isa()
    place = default_root() / KIND / _key(text, isa)
    code = _kept(place)
    if code is None:
        code = compile_object(text, isa)
        _keep(place, code)
    library, addresses = load_object(code, kinds, isa)
    _LOADED.append(library)
    return {name: kind(addresses[name]) for name, kind in kinds.items()}


# The code lives as long as these do.
_LOADED: list[object] = []


@cache
def this_isa() -> Isa:
    """Return what this processor has."""
    return isa_with(detect_cpu().features)


def isa_with(features: frozenset[str]) -> Isa:
    """Return what a processor with these features has.

    Of one that no target describes: what LLVM says of this machine.
    """
    target = resolve_cpu(features)
    if not target.features:
        own: str = llvm.get_host_cpu_features().flatten()
        return Isa(
            llvm_cpu=llvm.get_host_cpu_name(), lanes=8, registers=16, has_bf16=False,
            has_vnni=False, llvm_features=own,
        )  # fmt: skip
    isa = isa_of(target)
    if isa.has_bf16 or isa.lanes < LANES or "avx512bf16" not in features:
        return isa
    # Intel's processors, which no target describes, have it without what came before it at AMD.
    more = ",".join(filter(None, (isa.llvm_features, "+avx512bf16")))
    return replace(isa, has_bf16=True, llvm_features=more)


def _key(text: str, isa: Isa) -> str:
    known = (
        text,
        llvmlite.__version__,
        *map(str, llvm.llvm_version_info),
        llvm.get_default_triple(),
        repr(isa),
    )
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:_KEY_DIGITS]


def _kept(place: Path) -> bytes | None:
    try:
        stored = (place / FILE).read_bytes()
    except OSError:
        return None
    code = unsigned_bytes(f"{KIND}/{place.name}", stored)
    if code is None:
        _log.warning("the code in `%s` was not written here: it is compiled again", place)
        return None
    try:
        os.utime(place / FILE)  # so that `cache prune` sees when it was used last
    except OSError as error:
        _log.info("`%s` cannot be written: %s", place, error)
    return code


def _keep(place: Path, code: bytes) -> None:
    """Write beside and rename; a cache that cannot be written costs time, and nothing else."""
    stored = signed_bytes(f"{KIND}/{place.name}", code)
    if not stored:
        return
    aside = place.with_name(f".{place.name}.{os.urandom(6).hex()}")
    try:
        aside.mkdir(parents=True)
        (aside / FILE).write_bytes(stored)
        if place.exists():
            shutil.rmtree(place)
        aside.rename(place)
    except OSError as error:
        _log.info("compiled code is not kept in `%s`: %s", place, error)
        shutil.rmtree(aside, ignore_errors=True)
