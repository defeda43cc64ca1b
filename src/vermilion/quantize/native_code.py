"""Small functions in LLVM's language as machine code for this CPU, ready to be called.

What was compiled is kept in the user's cache, as `calibration/KEY/code.o`, and the key says all
that it depends on: compiling takes a tenth of what quantizing a small network does. Only what this
user's seal stands before is run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from vermilion.store.cache_dir import default_root
from vermilion.store.signature import signed_bytes, unsigned_bytes

_log = logging.getLogger(__name__)

KIND, FILE = "calibration", "code.o"
"""Folder below the cache, and the file in each folder there: seal, then object code."""

_KEY_DIGITS = 32  # 128 bits name a folder


def machine_code(text: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions of `text` by name; `kinds` holds the ctypes function type of each."""
    _initialize()
    place = default_root() / KIND / _key(text)
    code = _kept(place)
    if code is None:
        module = llvm.parse_assembly(text)
        module.verify()
        # A target machine belongs to the engine it is given to: one for each use.
        code = _machine(jit=False).emit_object(module)
        _keep(place, code)
    compiler = llvm.create_lljit_compiler(_machine(jit=True))
    builder = llvm.JITLibraryBuilder().add_object_img(code)
    for name in kinds:
        builder = builder.export_symbol(name)
    library = builder.add_current_process().link(compiler, f"vermilion_{'_'.join(kinds)}")
    _LOADED.append((compiler, library))
    return {name: kind(library[name]) for name, kind in kinds.items()}


# The code lives as long as these do.
_LOADED: list[Any] = []


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


def _machine(*, jit: bool) -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, reloc="pic", codemodel="small",
        jit=jit,
    )  # fmt: skip


@cache
def _features() -> str:
    text: str = llvm.get_host_cpu_features().flatten()
    return text


def _key(text: str) -> str:
    known = (
        text,
        llvmlite.__version__,
        *map(str, llvm.llvm_version_info),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        _features(),
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
