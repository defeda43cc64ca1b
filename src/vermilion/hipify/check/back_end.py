"""LLVM IR → an object file for an AMD GPU. Run as a program: what it meets can abort a process.

`python -m vermilion.hipify.check.back_end IN.bc ARCHITECTURE OUT.o`
"""

from __future__ import annotations

import sys
from pathlib import Path


def emit_object(ir_file: Path, architecture: str, object_file: Path) -> None:
    """Optimise a module and write its machine code."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_bitcode(ir_file.read_bytes())
    module.verify()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    machine = target.create_target_machine(
        cpu=architecture, opt=2, reloc="pic", codemodel="default"
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    object_file.write_bytes(machine.emit_object(module))


if __name__ == "__main__":
    emit_object(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
