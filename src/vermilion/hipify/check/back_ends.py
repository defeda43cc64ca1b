"""LLVM IR → an object file for an AMD GPU, in processes: what they read can abort them.

Each thread has one, started when first needed, and again after a crash. Run as a program, this
module reads requests from stdin, one JSON list a line: bitcode file, GPU, object file. It answers
each with a line: `ok`, or what is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

# The back end can hang on hostile input; a large kernel takes seconds.
TIME_LIMIT_S = 300


class BackEnds:
    """Gives each thread a back end of its own, so that none waits for another's."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()

    def emit_object(self, ir_file: Path, architecture: str, object_file: Path) -> str:
        """Make an object file. Gives what went wrong, empty if nothing did."""
        process = self._process()
        request = json.dumps([str(ir_file), architecture, str(object_file)])
        timer = threading.Timer(TIME_LIMIT_S, process.kill)
        timer.start()
        try:
            assert process.stdin is not None, "it is opened with a pipe"
            assert process.stdout is not None, "it is opened with a pipe"
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer == "ok":
            return ""
        return answer or self._last_words(process)

    def close(self) -> None:
        """End all of them."""
        for process in self._all:
            process.kill()
            process.communicate()

    def _process(self) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            process = subprocess.Popen(
                [sys.executable, "-m", "vermilion.hipify.check.back_ends"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, encoding="utf-8", errors="replace",
            )  # fmt: skip
            self._own.process = process
            with self._lock:
                self._all.append(process)
        return process

    def _last_words(self, process: subprocess.Popen[str]) -> str:
        """Return what a process that died said last."""
        code = process.wait()
        lines = process.stderr.read().strip().splitlines() if process.stderr is not None else []
        return lines[-1] if lines else f"it ended with code {code}"


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
