"""Small functions in LLVM's language as machine code for this CPU, ready to be called.

What was compiled is kept in the user's cache, and the key says all that it depends on: compiling
takes a tenth of what quantizing a small network does.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.load import load_object
from vermilion.codegen.object import compile_object
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import resolve_cpu
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import CALIBRATION
from vermilion.store.store import Store

# SHA-256 of the object, then the object: a file that is found alone says whether it is whole.
_FILE, _DIGEST_BYTES = "code.o", 32
_FORM = "digest, object"  # part of the key: entries of an earlier form are other entries

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
    library, addresses = load_object(_object_code(text, isa), kinds, isa)
    _LOADED.append(library)
    return {name: kind(addresses[name]) for name, kind in kinds.items()}


def _object_code(text: str, isa: Isa) -> bytes:
    def make(writer: EntryWriter) -> dict[str, object]:
        data = compile_object(text, isa)
        writer.write(_FILE, hashlib.sha256(data).digest() + data)
        return {}

    entry = Store().get_or_make(CALIBRATION, _key(text, isa), make)
    return compile_object(text, isa) if entry is None else bytes(entry.files[_FILE])[_DIGEST_BYTES:]


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
    return isa_of(target)


def _key(text: str, isa: Isa) -> str:
    known = (
        _FORM,
        text,
        llvmlite.__version__,
        *map(str, llvm.llvm_version_info),
        llvm.get_default_triple(),
        repr(isa),
    )
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:_KEY_DIGITS]
