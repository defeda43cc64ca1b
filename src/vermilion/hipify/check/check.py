"""All translated sources through the compiler, and its messages on the lines of the CUDA files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from vermilion.hipify.check.compile import (
    Compiled,
    Compiler,
    Diagnostic,
    open_compiler,
)
from vermilion.hipify.check.toolchain import LIBRARY_HEADERS
from vermilion.hipify.check.torch_headers import wants_torch
from vermilion.hipify.files import encode
from vermilion.hipify.finding import Finding
from vermilion.hipify.lint import silence
from vermilion.hipify.process import FileResult, original_position
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.tokens import tokenize
from vermilion.progress import Progress, no_progress

# How a back end names a kernel: `_Z` and the name behind its length (Itanium C++ ABI).
_MANGLED = re.compile(r"function '?_Z(?:L)?(\d+)(\w+)")

# Reading HIP's header ahead pays from this many sources a GPU.
_PRECOMPILE_FROM = 2

# Of folders in the search path: a command line has a limit.
_MOST_FOLDERS = 100

_ALWAYS_UNSEEN = (
    "nothing was run: results, speed and races show only on a GPU",
    "host code was checked for names and types, not linked",
)


@dataclass(frozen=True)
class CheckResult:
    """Whether one source compiles for one GPU, and how large its code object is."""

    file: str
    architecture: str
    ok: bool
    code_bytes: int
    kernels: int


@dataclass(frozen=True)
class Outcome:
    """What the check found, and what it could not see."""

    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    not_seen: tuple[str, ...]


def check_sources(
    results: Sequence[FileResult],
    architectures: Sequence[str],
    *,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    workers: int = 1,
    progress: Progress = no_progress,
) -> Outcome:
    """Compile each translated source for each GPU. Headers are checked through what includes them.

    Raises: OptionError for an unknown GPU, UnsupportedError where a package is missing.
    """
    readable = [result for result in results if result.was_read and not result.file.is_build_file]
    sources = [result for result in readable if result.file.path.suffix in {".cu", ".hip"}]
    with (
        open_compiler(
            architectures,
            includes=(*includes, *_own_folders(readable)),
            defines=(*_hip_macros(readable, defines), *defines),
            with_torch=wants_torch([result.text for result in readable]),
        ) as compiler,
        tempfile.TemporaryDirectory(prefix="vermilion-hipify-") as name,
    ):
        tree = Path(name).resolve() / "tree"
        names = {_lay_out(tree, result): result for result in readable}
        jobs = [(result, gpu) for result in sources for gpu in architectures]
        compiled = _compile_all(compiler, tree, jobs, workers, progress)
        checks = tuple(
            CheckResult(result.file.name, gpu, done.ok, done.code_bytes, done.kernels)
            for (result, gpu), done in zip(jobs, compiled, strict=True)
        )
        findings = _findings(jobs, compiled, names)
        return Outcome(checks, tuple(findings), _not_seen(jobs, compiled, readable, sources))


def _own_folders(results: Sequence[FileResult]) -> Iterator[Path]:
    """Yield the folders of the sources themselves: headers that were not given lie there."""
    folders = {result.file.path.parent for result in results}
    yield from sorted(folders)[:_MOST_FOLDERS]


def _hip_macros(results: Sequence[FileResult], given: Sequence[str]) -> Iterator[str]:
    """Yield the macros by which sources ask for their branch for HIP, less those given."""
    names = {word.split("=")[0] for word in given}
    for name in sorted({name for result in results for name in result.hip_macros} - names):
        yield f"{name}=1"


def _lay_out(tree: Path, result: FileResult) -> Path:
    """Write a translated text into the tree under its own name, so that includes find it."""
    path = tree / result.file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(result.text))
    return path


def _compile_all(
    compiler: Compiler,
    tree: Path,
    jobs: Sequence[tuple[FileResult, str]],
    workers: int,
    progress: Progress,
) -> list[Compiled]:
    done: dict[int, Compiled] = {}
    objects = tree.parent / "objects"
    gpus = sorted({gpu for _, gpu in jobs})
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        if len(jobs) > _PRECOMPILE_FROM * len(gpus):
            list(pool.map(compiler.precompile, gpus))
        waiting = {}
        for number, (result, gpu) in enumerate(jobs):
            folder = objects / str(number)
            folder.mkdir(parents=True)
            source = tree / result.file.name
            waiting[pool.submit(compiler.compile, source, gpu, folder, tree)] = number
        for finished in as_completed(waiting):
            done[waiting[finished]] = finished.result()
            progress("compiling", len(done), len(jobs))
    return [done[number] for number in range(len(jobs))]


def _findings(
    jobs: Sequence[tuple[FileResult, str]],
    compiled: Sequence[Compiled],
    names: dict[Path, FileResult],
) -> list[Finding]:
    """Return each message once, with the GPUs that it came for."""
    gpus: dict[tuple[str, Diagnostic], list[str]] = {}
    paths = {result.file.name: path for path, result in names.items()}
    for (result, gpu), done in zip(jobs, compiled, strict=True):
        for said in done.diagnostics:
            diagnostic = said if said.file else _at_kernel(said, result, paths)
            seen = gpus.setdefault((result.file.name, diagnostic), [])
            if gpu not in seen:
                seen.append(gpu)
    findings: dict[Finding, FileResult | None] = {}
    for (source, diagnostic), seen in gpus.items():
        where = names.get(Path(diagnostic.file)) if diagnostic.file else None
        finding = _finding(source, diagnostic, seen, where)
        findings[finding] = where
    return [
        finding
        for finding, where in findings.items()
        if where is None or silence([finding], tokenize(where.original))[0]
    ]


def _at_kernel(said: Diagnostic, result: FileResult, paths: dict[str, Path]) -> Diagnostic:
    """Return a message of the back end the place of the kernel that it names, if it names one."""
    named = _MANGLED.search(said.text)
    name = named[2][: int(named[1])] if named else ""
    found = re.search(rf"\b{name}\s*\(", result.text) if name else None
    if found is None:
        return said
    line = result.text.count("\n", 0, found.start()) + 1
    column = found.start() - (result.text.rfind("\n", 0, found.start()) + 1) + 1
    file = str(paths[result.file.name])
    return Diagnostic(said.kind, file, line, column, said.text)


def _finding(
    source: str, diagnostic: Diagnostic, gpus: Sequence[str], where: FileResult | None
) -> Finding:
    rule = RULES["compile" if diagnostic.kind == "error" else "compile-warning"]
    text = f"{diagnostic.text} ({', '.join(gpus)})"
    if where is None:
        place = f"{diagnostic.file}:{diagnostic.line}: " if diagnostic.file else ""
        return Finding(rule.id, rule.level, source, 1, 1, f"{place}{text}", rule.fix)
    line, column = original_position(where, diagnostic.line, diagnostic.column)
    return Finding(rule.id, rule.level, where.file.name, line, column, text, rule.fix)


def _not_seen(
    jobs: Sequence[tuple[FileResult, str]],
    compiled: Sequence[Compiled],
    readable: Sequence[FileResult],
    sources: Sequence[FileResult],
) -> tuple[str, ...]:
    stubs = sorted({stub for done in compiled for stub in done.stubs})
    lines = list(_ALWAYS_UNSEEN)
    empty = sorted(
        {
            result.file.name
            for (result, _), done in zip(jobs, compiled, strict=True)
            if done.ok and not done.kernels and "__global__" in result.text
        }
    )
    if empty:
        lines.append(
            f"no kernel came out of {', '.join(empty)}: a template that nothing here uses is "
            "only parsed"
        )
    made = [stub for stub in stubs if stub not in LIBRARY_HEADERS]
    bound = [stub for stub in stubs if stub in LIBRARY_HEADERS]
    if bound:
        lines.append(f"made from AMD's Python bindings, with no macros: {', '.join(bound)}")
    if made:
        listed = ", ".join(made)
        lines.append(f"declarations made for this check stood in for the real headers: {listed}")
    if not sources:
        lines.append("no .cu file: nothing was compiled")
    elif len(readable) > len(sources):
        lines.append("files other than .cu were compiled only where a .cu file includes them")
    return tuple(lines)
