"""One source text through translation, lint and fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vermilion.hipify.branches import Branches
from vermilion.hipify.files import SourceFile, lint_build_file, read_source
from vermilion.hipify.finding import Edit, Finding, OffsetMap, apply_edits, without_overlaps
from vermilion.hipify.lint import lint, silence
from vermilion.hipify.names import Names, is_cuda_name
from vermilion.hipify.rules.catalogue import RULES
from vermilion.hipify.tokens import Tokens, broken_tokens, tokenize
from vermilion.hipify.translate import Place, translate

# A fix can make place for another (a wider variable, then the count of its bits); more rounds
# than this would mean that two fixes undo each other.
_MAX_ROUNDS = 4


@dataclass(frozen=True)
class FileResult:
    """What became of one file; `stages` are the edits from each text to the next."""

    file: SourceFile
    original: str
    text: str
    findings: tuple[Finding, ...]
    silenced: int = 0
    stages: tuple[tuple[Edit, ...], ...] = ()
    own_names: frozenset[str] = frozenset()
    hip_macros: frozenset[str] = frozenset()

    @property
    def changed(self) -> bool:
        """Say whether the text is another than before."""
        return self.text != self.original

    @property
    def was_read(self) -> bool:
        """Say whether there is a text to write at all."""
        return bool(self.stages)


def process_file(
    file: SourceFile,
    *,
    fix: bool,
    rename_cu_includes: bool,
    extra_names: Mapping[str, str],
    project: tuple[Path, ...] = (),
    given: tuple[Path, ...] = (),
) -> FileResult:
    """Read a file and return its translation with what was found.

    `project` and `given` are the folders that its includes are looked for in.
    """
    text = read_source(file)
    if isinstance(text, Finding):
        return FileResult(file, "", "", (text,))
    if file.is_build_file:
        return FileResult(file, text, text, tuple(lint_build_file(text, file.name)), 0, ((),))
    return process_text(
        text, file, fix=fix, rename_cu_includes=rename_cu_includes, extra_names=extra_names,
        place=Place(file.path.parent, project, given),
    )  # fmt: skip


def process_text(
    text: str,
    file: SourceFile,
    *,
    fix: bool = False,
    rename_cu_includes: bool = False,
    extra_names: Mapping[str, str] | None = None,
    place: Place | None = None,
) -> FileResult:
    """Translate a text, look for what breaks, and fix what can be corrected if asked to."""
    tokens = tokenize(text)
    broken = broken_tokens(tokens)
    if broken:
        return FileResult(file, text, text, (_broken(tokens, broken[0], file.name),))
    translation = translate(
        text, file=file.name, names=Names(extra_names or {}),
        rename_cu_includes=rename_cu_includes, place=place,
    )  # fmt: skip
    stages = [translation.edits]
    branches = translation.branches
    found = lint(translation.text, original=tokens, edits=translation.edits, file=file.name)
    found = _for_both(found, tokens, branches)
    kept, silenced = silence([*translation.findings, *found], tokens)
    of_names = set(translation.findings)
    now = translation.text
    for _ in range(_MAX_ROUNDS if fix else 0):
        open_fixes = [finding for finding in kept if finding.edits and not finding.fixed]
        if not open_fixes:
            break
        edits = without_overlaps([edit for finding in open_fixes for edit in finding.edits])
        stages.append(edits)
        now = apply_edits(now, edits)
        done = [replace(finding, fixed=bool(finding.edits)) for finding in kept]
        again, _ = silence(lint(now, file=file.name), tokenize(now))
        places = _for_both(_moved(again, now, stages, tokens), tokens, branches)
        kept = [*(f for f in done if f.fixed or f in of_names), *places]
    unique = tuple(dict.fromkeys(kept))
    # Only what looks like CUDA's can be taken for it in another file.
    own = frozenset(name for name in translation.own_names if is_cuda_name(name))
    return FileResult(
        file, text, now, unique, silenced, tuple(map(tuple, stages)), own, branches.macros
    )


def _for_both(findings: list[Finding], tokens: Tokens, branches: Branches) -> list[Finding]:
    """Leave out what stands in a branch, or a test, that its author wrote for HIP or for CUDA."""
    if not branches.starts:
        return findings
    starts = tokens.line_starts
    return [f for f in findings if branches.at(starts[f.line - 1] + f.column - 1) is None]


def original_position(result: FileResult, line: int, column: int) -> tuple[int, int]:
    """Return where a place of the final text was in the file as it was read."""
    final = line_offsets(result.text)
    if not 0 < line <= len(final):
        return line, column
    offset = min(final[line - 1] + column - 1, len(result.text))
    for edits in reversed(result.stages):
        offset = OffsetMap(edits).before(offset)
    starts = line_offsets(result.original)
    row = sum(start <= offset for start in starts)
    return row, offset - starts[row - 1] + 1


def line_offsets(text: str) -> list[int]:
    """Return the offset at which each line begins."""
    starts, at = [0], text.find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1)
    return starts


def _moved(
    findings: list[Finding], text: str, stages: list[list[Edit]], original: Tokens
) -> list[Finding]:
    """Return findings in the newest text with their places in the original."""
    now = line_offsets(text)
    maps = [OffsetMap(edits) for edits in reversed(stages)]
    moved = []
    for finding in findings:
        offset = now[finding.line - 1] + finding.column - 1
        for places in maps:
            offset = places.before(offset)
        line, column = original.position(offset)
        moved.append(replace(finding, line=line, column=column))
    return moved


def _broken(tokens: Tokens, index: int, file: str) -> Finding:
    row = RULES["file-broken"]
    line, column = tokens.position(tokens.starts[index])
    what = {"/": "a comment", '"': "a string"}.get(tokens.raw(index)[0], "a raw string")
    return Finding(
        row.id, row.level, file, line, column, f"{what} begins here and never ends", row.fix
    )
