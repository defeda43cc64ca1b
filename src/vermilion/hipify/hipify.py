"""The whole way: find the sources, translate and lint each, write them, compile them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path, PurePosixPath

from vermilion.cores import usable_cores
from vermilion.errors import OptionError
from vermilion.files import resolved, write_file
from vermilion.hipify.check.check import CheckResult, check_sources
from vermilion.hipify.files import (
    SourceFile,
    cmake_fragment,
    collect,
    encode,
    libraries_used,
    setup_fragment,
)
from vermilion.hipify.finding import Finding, order
from vermilion.hipify.headers import include_folders
from vermilion.hipify.names import torch_names
from vermilion.hipify.process import FileResult, process_file
from vermilion.progress import Progress, no_progress

# Below this, starting processes takes longer than the work.
_PARALLEL_FROM_BYTES = 2_000_000
_DEFAULT_ARCHITECTURES = ("gfx942", "gfx1100")


@dataclass(frozen=True)
class Options:
    """What to do with the sources.

    Raises: OptionError where two options contradict each other.
    """

    output: Path | None = None
    in_place: bool = False
    fix: bool = False
    check: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    build_files: bool = False
    with_torch_table: bool = False
    jobs: int = 0

    def __post_init__(self) -> None:
        if self.output is not None and self.in_place:
            raise OptionError("`-o` and `--in-place` contradict each other")
        if self.build_files and self.output is None:
            raise OptionError("`--build-files` writes into a folder", hint="name it with `-o DIR`")

    @property
    def workers(self) -> int:
        """Return how many processes may work at once."""
        return self.jobs or usable_cores()


@dataclass(frozen=True)
class Report:
    """What was done, and what is left to do."""

    files: tuple[FileResult, ...]
    findings: tuple[Finding, ...]
    checks: tuple[CheckResult, ...] = ()
    not_seen: tuple[str, ...] = ()
    written: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """Say whether nothing is left."""
        return not any(finding.is_left for finding in self.findings)


def hipify(paths: Sequence[Path], options: Options, progress: Progress = no_progress) -> Report:
    """Translate CUDA sources, look for what breaks on AMD GPUs, and compile the result.

    Raises: OptionError for wrong use, UnsupportedError where the check lacks a package.
    """
    files = collect(paths)
    if options.output is not None:
        _check_output(options.output, paths, files)
    extra = torch_names() if options.with_torch_table else {}
    project = include_folders(paths, ())
    results = _without_own_names(_process(files, options, extra, project, progress))
    written = tuple(_write(results, options))
    checks: tuple[CheckResult, ...] = ()
    not_seen: tuple[str, ...] = ()
    findings = [finding for result in results for finding in result.findings]
    if options.check:
        outcome = check_sources(
            results, options.check, includes=options.includes, defines=options.defines,
            workers=options.workers, progress=progress,
        )  # fmt: skip
        checks, not_seen = outcome.checks, outcome.not_seen
        findings += outcome.findings
    return Report(tuple(results), tuple(sorted(findings, key=order)), checks, not_seen, written)


def _check_output(output: Path, paths: Sequence[Path], files: Sequence[SourceFile]) -> None:
    """Refuse a folder that a second run would take for sources, and two files for one name."""
    for path in paths:
        if path.is_dir() and resolved(output).is_relative_to(resolved(path)):
            raise OptionError(
                f"`-o {output}` lies in the folder of the sources",
                hint="write beside it, or over the files with `--in-place`",
            )
    seen: dict[str, str] = {}
    for file in files:
        name = output_name(file.name)
        if name in seen:
            raise OptionError(f"`{seen[name]}` and `{file.name}` would both be written as `{name}`")
        seen[name] = file.name


def diff(report: Report) -> str:
    """Return the change of every file as one patch."""
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for result in report.files
        if result.changed
        for line in difflib.unified_diff(
            StringIO(result.original).readlines(),  # lines end at \n only, as patch says
            StringIO(result.text).readlines(),
            f"a/{result.file.name}",
            f"b/{result.file.name}",
        )
    )


def output_name(name: str) -> str:
    """Return the name of a translated file in the output folder: `x.cu` becomes `x.hip`."""
    path = PurePosixPath(name)
    return str(path.with_suffix(".hip")) if path.suffix == ".cu" else name


def _process(
    files: Sequence[SourceFile],
    options: Options,
    extra: Mapping[str, str],
    project: tuple[Path, ...],
    progress: Progress,
) -> list[FileResult]:
    work = partial(
        process_file,
        fix=options.fix,
        rename_cu_includes=options.output is not None,
        extra_names=extra,
        project=project,
        given=include_folders((), options.includes),
    )
    stage = "translating"
    total_bytes = sum(file.path.lstat().st_size for file in files)
    if options.workers == 1 or len(files) < 2 or total_bytes < _PARALLEL_FROM_BYTES:
        results = []
        for done, file in enumerate(files):
            progress(stage, done, len(files))
            results.append(work(file))
        progress(stage, len(files), len(files))
        return results
    by_name: dict[str, FileResult] = {}
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = {pool.submit(work, file): file for file in files}
        for finished in as_completed(waiting):
            by_name[waiting[finished].name] = finished.result()
            progress(stage, len(by_name), len(files))
    return [by_name[file.name] for file in files]


def _without_own_names(results: Sequence[FileResult]) -> list[FileResult]:
    """Drop what is unknown only in its file: another file of the tree defines it."""
    own = frozenset[str]().union(*(result.own_names for result in results))
    return [
        replace(result, findings=tuple(f for f in result.findings if f.name not in own))
        if own
        else result
        for result in results
    ]


def _write(results: Sequence[FileResult], options: Options) -> Iterator[Path]:
    if options.in_place:
        for result in results:
            if result.was_read and result.changed:
                write_file(result.file.path, encode(result.text))
                yield result.file.path
        return
    if options.output is None:
        return
    for result in results:
        if result.was_read and not result.file.is_build_file:
            path = options.output / output_name(result.file.name)
            write_file(path, encode(result.text))
            yield path
    if options.build_files:
        yield from _write_build_files(results, options.output, options.check)


def _write_build_files(
    results: Sequence[FileResult], folder: Path, architectures: Sequence[str]
) -> Iterator[Path]:
    read = [result for result in results if result.was_read and not result.file.is_build_file]
    sources = [
        output_name(result.file.name)
        for result in read
        if result.file.path.suffix in {".cu", ".hip", ".cpp", ".cc", ".cxx"}
    ]
    libraries = libraries_used([result.text for result in read])
    gpus = architectures or _DEFAULT_ARCHITECTURES
    for name, make in (("CMakeLists.txt", cmake_fragment), ("hip_setup.py", setup_fragment)):
        path = folder / name
        write_file(path, make(sources, libraries, gpus))
        yield path
