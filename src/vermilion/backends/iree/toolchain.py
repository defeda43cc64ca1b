"""IREE's compiler, as a child process with a time limit and a log."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

from vermilion.amdgpu.code_object import code_of
from vermilion.amdgpu.family import assemble_for_family, named_for_family
from vermilion.backends.iree.machine_code import Kernel, read_kernels
from vermilion.backends.iree.parameters import LEAST_ELEMENTS, SCOPE
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.targets.gpu import facts_of, instead_of
from vermilion.hardware.targets.target import GpuFacts
from vermilion.progress import Progress

PACKAGES = ("iree-base-compiler", "iree-base-runtime")
PIP_LINE = "pip install 'vermilion[gpu]'"

# ResNet-50 takes half a minute to import and compile for one GPU on two busy cores.
IMPORT_LIMIT_S = 600.0
COMPILE_LIMIT_S = 1800.0

FUNCTION = "main"
_MLIR_FILE = "part.mlir"
_OPERATOR = re.compile(r'"onnx\.(\w+)"|torch\.aten\.(\w+)')
_MAX_REASON = 300
# Where the compiler's text names the GPU, and nothing was made for it yet.
_PHASE = "global-optimization"
_MATRIX_UNITS = re.compile(r"mma = \[[^\]]*\], ")
# The importer converts older models to this, the oldest whose operators IREE knows well.
_OPSET = 17
_IMPORT = (sys.executable, "-m", "iree.compiler.tools.import_onnx")
_CPU_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


@dataclass(frozen=True)
class Work:
    """A folder where a part is compiled, what is told of it, and how long a step may take."""

    folder: Path
    log: Path
    progress: Progress
    limit_s: float = COMPILE_LIMIT_S


def installed() -> dict[str, str] | Refusal:
    """Return the versions of IREE's packages, or say which are missing."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return Refusal(f"the package {package} is not installed", PIP_LINE)
    if find_spec("iree.compiler") is None or find_spec("iree.runtime") is None:
        return Refusal("the packages of IREE are installed, and cannot be found", PIP_LINE)
    return found


def import_part(model: ir.Model, work: Work, *, lend: bool = False) -> Path:
    """Return the part in IREE's own form; with `lend`, large weights are not in it.

    Raises: UnsupportedError with the importer's words.
    """
    model.graph.name = FUNCTION
    onnx_file, mlir = work.folder / "part.onnx", work.folder / _MLIR_FILE
    ir.save(model, onnx_file, external_data="part.weights")
    words = [*_IMPORT, str(onnx_file), "-o", str(mlir)]
    if model.graph.opset_imports.get("", _OPSET) < _OPSET:
        words += ["--opset-version", str(_OPSET)]
    if lend:
        words += ["--externalize-params", "--no-save-params", f"--params-scope={SCOPE}"]
        words += [f"--num-elements-threshold={LEAST_ELEMENTS}"]
    _run(words, "importing the part", work, IMPORT_LIMIT_S)
    return mlir


def compile_for_cpu(mlir: Path, result: Path, work: Work) -> None:
    """Compile for this machine's CPU: what the GPU's program is checked with."""
    words = [_compiler(), str(mlir), "-o", str(result), *_CPU_FLAGS]
    _run(words, "compiling for the CPU", work)


@dataclass(frozen=True)
class ForGpu:
    """What came of compiling for one GPU: its kernels, and each code object's assembly."""

    kernels: tuple[Kernel, ...]
    assemblies: Mapping[bytes, str]


def compile_for_gpu(mlir: Path, gpu: str, result: Path, work: Work) -> ForGpu:
    """Compile for one GPU, and read what came of it.

    Raises: UnsupportedError with the compiler's words, or where the result is not what it says.
    """
    pieces = work.folder / gpu
    pieces.mkdir()
    facts = facts_of(gpu)
    words = [
        *(_compiler(), str(mlir), "-o", str(result)),
        *("--iree-hal-target-device=hip", f"--iree-rocm-target={gpu}"),
        f"--iree-hal-dump-executable-intermediates-to={pieces}",
        f"--iree-hal-dump-executable-binaries-to={pieces}",
    ]
    if facts is not None and facts.compiled_as:
        words[1] = str(_described(mlir, gpu, facts, work))
        words[5] = f"--compile-from={_PHASE}"
    try:
        _run(words, f"compiling for {gpu}", work)
    except UnsupportedError as error:
        if "Unknown ROCM target" in error.message:
            raise UnsupportedError(
                f"IREE {version(PACKAGES[0])} does not compile for {gpu}",
                hint=instead_of(gpu),
            ) from error
        raise
    if facts is not None and facts.members:
        _as_family(result, pieces, gpu, work)
    else:
        _as_shown(result, pieces, work)
    program = result.read_bytes()
    kernels: list[Kernel] = []
    assemblies: dict[bytes, str] = {}
    for code_object in sorted(pieces.glob("*.hsaco")):
        code = code_object.read_bytes()
        if code not in program:
            raise UnsupportedError(f"the program for {gpu} does not hold the code that was read")
        assembly = code_object.with_suffix(".rocmasm").read_text(encoding="utf-8", errors="replace")
        kernels += read_kernels(gpu, code, assembly)
        assemblies[code] = assembly
    return ForGpu(tuple(kernels), assemblies)


def _described(mlir: Path, gpu: str, facts: GpuFacts, work: Work) -> Path:
    """Return the part in the middle of its way, with a GPU that the compiler has no name for.

    The compiler describes the GPU that it is compiled as: sizes of workgroups, of shared memory.
    The name, which decides on the instructions, is put in that one's place.
    """
    place = work.folder / f"{gpu}.mlir"
    words = [
        *(_compiler(), str(mlir), "-o", str(place), f"--compile-to={_PHASE}"),
        *("--iree-hal-target-device=hip", f"--iree-rocm-target={facts.compiled_as}"),
    ]
    _run(words, f"describing {gpu}", work)
    # A family's program is compiled for one of its members and named for all afterwards.
    name = gpu if not facts.members else facts.members[0]
    text = place.read_text(encoding="utf-8")
    text = text.replace(f'arch = "{facts.compiled_as}"', f'arch = "{name}"')
    if not facts.matrix_instructions:
        text = _MATRIX_UNITS.sub("", text)
    place.write_text(text, encoding="utf-8")
    return place


def _as_family(program: Path, pieces: Path, family: str, work: Work) -> None:
    """Replace the code objects of a program by those for a family, in place."""
    data = program.read_bytes()
    for code_object in sorted(pieces.glob("*.hsaco")):
        code, assembly = code_object.read_bytes(), code_object.with_suffix(".rocmasm")
        named = named_for_family(assembly.read_text(encoding="utf-8"), family)
        made = assemble_for_family(named, family, len(code), (linker(),), work.folder)
        if data.count(code) != 1:
            raise UnsupportedError(f"the program for {family} does not hold its code once")
        data = data.replace(code, made.ljust(len(code), b"\0"))
        code_object.write_bytes(made)
        assembly.write_text(named, encoding="utf-8")
    program.write_bytes(data)


def _as_shown(program: Path, pieces: Path, work: Work) -> None:
    """Replace code objects by those of their assembly, where the compiler shows another, in place.

    What is reported and executed is then what the program holds. Where it does not fit, it stays.
    """
    data = program.read_bytes()
    before = data
    for code_object in sorted(pieces.glob("*.hsaco")):
        code, assembly = code_object.read_bytes(), code_object.with_suffix(".rocmasm")
        try:
            made = code_of(code, assembly.read_text(encoding="utf-8"), (linker(),), work.folder)
        except UnsupportedError:
            continue  # whoever would execute it finds out, and says so
        if made != code and len(made) <= len(code) and data.count(code) == 1:
            data = data.replace(code, made.ljust(len(code), b"\0"))
            code_object.write_bytes(made)
    if data != before:
        program.write_bytes(data)


def _compiler() -> str:
    """Return the compiler itself: ending the command of the package would not end it."""
    package = find_spec("iree.compiler")
    if package is None or package.origin is None:
        raise UnsupportedError("IREE's compiler is not installed", hint=PIP_LINE)
    name = "iree-compile.exe" if sys.platform == "win32" else "iree-compile"
    return str(Path(package.origin).parent / "_mlir_libs" / name)


def linker() -> str:
    """Return LLVM's linker of the same package, which has its assembler in it."""
    return str(Path(_compiler()).with_name("iree-lld"))


def _run(words: Sequence[str], doing: str, work: Work, limit_s: float | None = None) -> None:
    limit = work.limit_s if limit_s is None else min(limit_s, work.limit_s)
    with work.log.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"== {doing}\n")
        log.flush()
        start = log.tell()
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=limit,
                cwd=work.folder,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(
                f"{doing} took more than {limit:g} s and was stopped",
                hint="compile a smaller part of the model, or for fewer GPUs",
            ) from error
        log.seek(start)
        said = log.read()
    if done.returncode:
        raise UnsupportedError(
            f"{doing} failed: {_reason(said) or f'exit code {done.returncode}'}",
            hint="`--bisect DIR` finds the operator; the other parts are compiled",
        )


def _reason(said: str) -> str:
    """Return the compiler's first complaint, without the place in a file that is gone by then."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line.lower() or "Unknown ROCM" in line]
    chosen = (errors or lines[-1:] or [""])[0]
    operator = _OPERATOR.search(chosen) if "failed to legalize" in chosen else None
    if operator:
        return f"it has no `{operator[1] or operator[2]}` of this form"
    return (chosen.partition("error: ")[2] or chosen)[:_MAX_REASON]
