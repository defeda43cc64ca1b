"""Small functions in LLVM's language as machine code for this CPU, ready to be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm


def machine_code(text: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Give the functions of `text` by name; `kinds` holds the ctypes function type of each."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    module = llvm.parse_assembly(text)
    module.verify()
    # A target machine belongs to the engine it is given to: one for each use.
    code = _machine(jit=False).emit_object(module)
    compiler = llvm.create_lljit_compiler(_machine(jit=True))
    builder = llvm.JITLibraryBuilder().add_object_img(code)
    for name in kinds:
        builder = builder.export_symbol(name)
    library = builder.add_current_process().link(compiler, f"vermilion_{'_'.join(kinds)}")
    _KEPT.append((compiler, library))
    return {name: kind(library[name]) for name, kind in kinds.items()}


# The code lives as long as these do.
_KEPT: list[Any] = []


def _machine(*, jit: bool) -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="small",
        jit=jit,
    )
