"""One HIP source → a code object for one GPU, or the compiler's messages.

Each thread has one, started when first needed, and again after a crash. Run as a program, this
module reads requests from stdin, one JSON list a line: bitcode file, GPU, object file. It answers
each with a line: `ok`, or what is wrong.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vermilion.errors import OptionError
from vermilion.hipify.check.toolchain import Toolchain, find_toolchain, write_sysroot
from vermilion.hipify.check.torch_headers import DEFINES, write_torch_headers

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
                [sys.executable, "-m", "vermilion.hipify.check.compile"],
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


_LINE = re.compile(
    r"(?P<file>.*?):(?P<line>\d+):(?P<column>\d+): "
    r"(?P<kind>fatal error|error|warning|note): (?P<text>.*)"
)
_BARE = re.compile(r"(?:clang\S*: )?(?:fatal )?error: (?P<text>.*)")


@dataclass(frozen=True)
class Diagnostic:
    """One message, at a place in a file of the user's; no file where it has none."""

    kind: Literal["error", "warning"]
    file: str
    line: int
    column: int
    text: str


def read_diagnostics(output: str, is_users: Callable[[str], bool]) -> list[Diagnostic]:
    """Read clang's messages.

    One in a header that is not the user's is moved to where the user's code led there: to the
    first of its notes that points into a file of the user's.
    """
    found: list[Diagnostic] = []
    waiting: Diagnostic | None = None
    for line in output.splitlines():
        message = _LINE.match(line)
        if message is None:
            if bare := _BARE.fullmatch(line):
                found.append(Diagnostic("error", "", 0, 0, bare["text"]))
            continue
        file, row, column = message["file"], int(message["line"]), int(message["column"])
        if message["kind"] == "note":
            if waiting is not None and is_users(file):
                found.append(Diagnostic(waiting.kind, file, row, column, waiting.text))
                waiting = None
            continue
        if waiting is not None:
            found.append(waiting)
            waiting = None
        kind: Literal["error", "warning"] = "warning" if message["kind"] == "warning" else "error"
        new = Diagnostic(kind, file, row, column, message["text"])
        if is_users(file):
            found.append(new)
        else:
            waiting = new
    return [*found, waiting] if waiting is not None else found


ARCHITECTURES = (
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950",
    "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103",
    "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201",
)  # fmt: skip

_QUIET = (
    "-Wno-linker-warnings",
    # HIP's functions are all [[nodiscard]]; CUDA code seldom looks at an error.
    "-Wno-unused-value",
    "-Wno-unused-result",
    "-Wno-unused-command-line-argument",
    "-Wno-deprecated-declarations",
)


# What LLVM begins a message with that belongs to no line.
_NOWHERE = re.compile(r"^(?:LLVM ERROR: |error: |<unknown>:0:0: )+")


@dataclass(frozen=True)
class Compiled:
    """What came of a source for a GPU: a code object, or why there is none."""

    architecture: str
    diagnostics: tuple[Diagnostic, ...]
    code_bytes: int = 0
    kernels: int = 0
    stubs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether there is a code object."""
        return self.code_bytes > 0


@dataclass(frozen=True)
class Compiler:
    """A compiler that is ready: its pieces, and the folder that looks like ROCm."""

    tools: Toolchain
    root: Path
    back_ends: BackEnds
    includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    system: tuple[Path, ...] = ()  # of libraries: their messages are not the user's

    def compile(self, source: Path, architecture: str, folder: Path, users: Path) -> Compiled:
        """Compile one source into a code object in `folder`.

        Files below `users` are the user's: messages are moved there.
        """
        stem = folder / f"{source.stem}.{architecture}"
        ir_file, object_file = Path(f"{stem}.bc"), Path(f"{stem}.o")
        dependencies = Path(f"{stem}.d")
        done = _run(self._front_end(source, architecture, ir_file, dependencies))
        roots = (users, *self.includes)
        seen = read_diagnostics(
            done.stderr, lambda file: any(Path(file).is_relative_to(root) for root in roots)
        )
        stubs = self._stubs_in(dependencies)
        if done.returncode:
            what = seen or [Diagnostic("error", "", 0, 0, _last_line(done.stderr))]
            return Compiled(architecture, tuple(what), stubs=stubs)
        code = Path(f"{stem}.hsaco")
        wrong = self.back_ends.emit_object(ir_file, architecture, object_file)
        if not wrong:
            done = _run([str(self.tools.linker), "-shared", str(object_file), "-o", str(code)])
            wrong = _last_line(done.stderr) if done.returncode else ""
        if wrong:
            refusal = Diagnostic(
                "error", "", 0, 0, f"the back end refuses it: {_NOWHERE.sub('', wrong)}"
            )
            return Compiled(architecture, (*seen, refusal), stubs=stubs)
        data = code.read_bytes()
        return Compiled(architecture, tuple(seen), len(data), _kernels_in(data), stubs)

    def precompile(self, architecture: str) -> None:
        """Read HIP's header once for all sources that follow: it takes most of the time.

        Without it, or where it fails, each source reads the header itself.
        """
        header = self.root / f"first.{architecture}.h"
        header.write_text("#include <hip/hip_runtime.h>\n", "utf-8")
        target = self._precompiled(architecture)
        command = self._front_end(header, architecture, target, Path(f"{target}.d"))
        done = _run(["-emit-pch" if word == "-emit-llvm-bc" else word for word in command])
        if done.returncode:
            target.unlink(missing_ok=True)

    def _precompiled(self, architecture: str) -> Path:
        return self.root / f"first.{architecture}.pch"

    def _front_end(
        self, source: Path, architecture: str, ir_file: Path, dependencies: Path
    ) -> list[str]:
        """Return the command that makes LLVM IR, as clang's driver would call itself.

        The clang of the package has no AMDGPU back end, so it knows none of the options that the
        driver adds for one; the driver is asked for its command, and those are left out.
        """
        driver = [
            str(self.tools.clang), "-x", "hip", f"--offload-arch={architecture}",
            f"--rocm-path={self.root}", "-isystem", str(self.root / "include"),
            "--offload-device-only", "-c", "-emit-llvm", "-O2", "-Xclang", "-disable-llvm-passes",
            "-include", "hip/hip_runtime.h",
            *(f"-I{path}" for path in self.includes), *(f"-D{word}" for word in self.defines),
            *(word for path in self.system for word in ("-isystem", str(path))),
            "-isystem", str(self.root / "stubs"),
            "-fno-color-diagnostics", "-fno-caret-diagnostics", "-fdiagnostics-absolute-paths",
            "-ferror-limit=50", *_QUIET,
            str(source), "-o", str(ir_file),
        ]  # fmt: skip
        asked = _run([*driver, "-###"])
        commands = [line for line in asked.stderr.splitlines() if '"-cc1"' in line]
        if not commands:
            # The driver itself refuses: its own message says why.
            return driver
        words = iter(shlex.split(commands[-1]))
        kept = []
        for word in words:
            if word == "-mllvm":
                next(words, "")
                continue
            kept.append(word)
            if word == "-cc1" and self._precompiled(architecture).exists():
                kept += ["-include-pch", str(self._precompiled(architecture))]
            if word == "-cc1":
                # The driver asks for no list of headers when it compiles for a GPU.
                kept += ["-dependency-file", str(dependencies), "-sys-header-deps", "-MT", "out"]
        return kept

    def _stubs_in(self, dependencies: Path) -> tuple[str, ...]:
        """Return the headers of `stubs/` that a source included."""
        if not dependencies.exists():
            return ()
        stubs = self.root / "stubs"
        words = dependencies.read_text("utf-8", errors="replace").replace("\\\n", " ").split()
        paths = (Path(word) for word in words if word.startswith(str(stubs)))
        return tuple(sorted({path.relative_to(stubs).as_posix() for path in paths}))


@contextmanager
def open_compiler(
    architectures: Sequence[str],
    *,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    with_torch: bool = False,
) -> Iterator[Compiler]:
    """Yield a compiler for some GPUs; its folder goes when it is no longer used.

    Raises: OptionError for a GPU that is not known, UnsupportedError where a package is missing.
    """
    for architecture in architectures:
        if architecture not in ARCHITECTURES:
            raise OptionError(
                f"`{architecture}` is no GPU that the compile check knows",
                hint=f"it knows {', '.join(ARCHITECTURES)}",
            )
    tools = find_toolchain()
    with tempfile.TemporaryDirectory(prefix="vermilion-hipify-") as name:
        root = Path(name).resolve() / "rocm"
        root.mkdir()
        write_sysroot(root, tools, tuple(architectures))
        paths = tuple(path.resolve() for path in includes)
        system = write_torch_headers(root / "torch") if with_torch else ()
        if system:
            given = {word.split("=")[0] for word in defines}
            defines = (*defines, *(one for one in DEFINES if one.split("=")[0] not in given))
        back_ends = BackEnds()
        try:
            yield Compiler(tools, root, back_ends, paths, tuple(defines), system)
        finally:
            back_ends.close()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"it took more than {TIME_LIMIT_S} s"
        return subprocess.CompletedProcess(command, 1, "", f"error: {text}")


def _kernels_in(code: bytes) -> int:
    """Count the kernels of a code object: each has a descriptor, a symbol that ends in `.kd`."""
    return len(set(re.findall(rb"\0([\w$.]+)\.kd\0", code)))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
