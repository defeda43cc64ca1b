"""LLVM IR → an object file for an AMD GPU. Run as a program: what it meets can abort a process.

`python -m vermilion.hipify.check.back_end` reads requests from stdin, one JSON list a line: bitcode
file, GPU, object file. It answers each with a line: `ok`, or what is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def emit_object(ir_file: Path, architecture: str, object_file: Path) -> None:
    """Optimise a module and write its machine code."""
    import llvmlite.binding as llvm

    module = llvm.parse_bitcode(ir_file.read_bytes())
    module.verify()
    # clang's own back end drops what only other files of a program could call; kernels stay.
    for function in module.functions:
        if not function.is_declaration and function.visibility != llvm.Visibility.protected:
            function.linkage = llvm.Linkage.internal
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    machine = target.create_target_machine(
        cpu=architecture, opt=2, reloc="pic", codemodel="default"
    )
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    object_file.write_bytes(machine.emit_object(module))


def serve() -> None:
    """Answer requests until stdin ends."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for line in sys.stdin:
        ir_file, architecture, object_file = json.loads(line)
        try:
            emit_object(Path(ir_file), architecture, Path(object_file))
            answer = "ok"
        except (RuntimeError, OSError) as error:
            answer = " ".join(str(error).split()) or type(error).__name__
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
