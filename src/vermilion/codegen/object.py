"""LLVM IR → machine code in an object file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from vermilion.codegen.isa import Isa
from vermilion.errors import DeviceError

Library = Any  # llvmlite's resource tracker: keeps the code alive


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


def _machine(isa: Isa, *, jit: bool = False) -> Any:
    # A target machine belongs to the engine it is given to: make one each time.
    _initialize()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=isa.llvm_cpu, features=isa.llvm_features, opt=3, reloc="pic", codemodel="small", jit=jit
    )


# Of LLVM's passes, those that make most of the difference: registers of stack slots, one round of
# peepholes, loops in the form that the back end wants, repeats merged. A network is compiled in 2.2
# to 2.4 times less time, for code that gives the same bits and ran 0 to 1.5 % slower: ResNet-50 in
# 56.5 ms instead of 55.8, PP-OCR recognition in bfloat16 in 14.8 instead of 14.7 (minima of turns
# on one core of an Ice Lake).
_FEW_PASSES = (
    "sroa", "instruction_combine", "simplify_cfg", "loop_simplify", "loop_rotate", "new_gvn",
    "aggressive_dce",
)  # fmt: skip


def _optimized(text: str, machine: Any, *, few_passes: bool = False) -> Any:
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(3)
    # The kernels are unrolled and vectorized as they are meant to be; more of it only spills.
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager() if few_passes else builder.getModulePassManager()
    for name in _FEW_PASSES if few_passes else ():
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return module


def compile_object(text: str, isa: Isa, *, few_passes: bool = False) -> bytes:
    """Turn LLVM IR into an object file for `isa`; with `few_passes` soon, instead of fast."""
    machine = _machine(isa)
    data: bytes = machine.emit_object(_optimized(text, machine, few_passes=few_passes))
    return data


def compile_objects(texts: Sequence[str], isa: Isa, *, few_passes: bool = False) -> list[bytes]:
    """Compile several modules at once, all but the first in processes of their own.

    llvmlite holds one lock over the whole of LLVM, so that threads would take turns.
    """
    if len(texts) == 1 or not sys.executable:
        return [compile_object(text, isa, few_passes=few_passes) for text in texts]
    with ThreadPoolExecutor(len(texts) - 1) as pool:
        others = [pool.submit(_compile_apart, text, isa, few_passes) for text in texts[1:]]
        first = compile_object(texts[0], isa, few_passes=few_passes)
        return [first, *(other.result() for other in others)]


_WORKER = "from vermilion.codegen.object import serve_one; serve_one()"


def _compile_apart(text: str, isa: Isa, few_passes: bool) -> bytes:
    request = json.dumps({"isa": asdict(isa), "few_passes": few_passes}) + "\n" + text
    done = subprocess.run(
        [sys.executable, "-c", _WORKER], input=request.encode(), capture_output=True, check=False
    )
    # A process that could not start or was killed for memory: the work is done here instead.
    if done.returncode == 0:
        return done.stdout
    return compile_object(text, isa, few_passes=few_passes)


def serve_one() -> None:
    """Compile the module on stdin as its first line says, to stdout."""
    head, text = sys.stdin.buffer.read().decode().split("\n", 1)
    asked = json.loads(head)
    data = compile_object(text, Isa(**asked["isa"]), few_passes=asked["few_passes"])
    sys.stdout.buffer.write(data)


def assembly(text: str, isa: Isa, *, few_passes: bool = False) -> str:
    """Return the assembly that `compile_object` encodes, for people."""
    machine = _machine(isa)
    written: str = machine.emit_assembly(_optimized(text, machine, few_passes=few_passes))
    return written


def link_object(data: bytes, symbols: Iterable[str], isa: Isa) -> tuple[Library, Mapping[str, int]]:
    """Load an object file with LLVM's linker; give what keeps it alive and the addresses.

    Raises: DeviceError where the linker refuses it.
    """
    names = list(symbols)
    compiler = llvm.create_lljit_compiler(_machine(isa, jit=True))
    builder = llvm.JITLibraryBuilder().add_object_img(data)
    for name in names:
        builder = builder.export_symbol(name)
    try:
        library = builder.add_current_process().link(compiler, "vermilion")
    except RuntimeError as error:
        raise DeviceError(
            f"the compiled code cannot be loaded: {error}",
            hint="compile the model again on this machine",
        ) from error
    return (compiler, library), {name: int(library[name]) for name in names}
