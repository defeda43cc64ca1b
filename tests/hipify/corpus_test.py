"""CUDA sources of our own, one a library or rule: expected HIP text, findings, compile results.

For `cuda/x.cu`, `expected/` holds `x.hip` (the translation), `x.fixed.hip` (after `--fix`, where
that changes anything) and `x.txt` (findings; what the compiler says of the fixed text). A missing
file is a failure; `pytest tests/hipify --update-golden` writes them.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from vermilion.hipify.files import SourceFile
from vermilion.hipify.finding import Finding, order
from vermilion.hipify.hipify import Options, Report, hipify
from vermilion.hipify.process import FileResult, process_text
from vermilion.hipify.tokens import tokenize

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "cuda").glob("*.cu"))
NAMES = [path.stem for path in SOURCES]

# A wave of 64 lanes, and two generations with 32.
GPUS = ("gfx942", "gfx1100", "gfx1201")

# What must not compile, and on which GPUs it does not; each for the reason that its name says.
REFUSED = {
    "cooperative_reduce": GPUS,
    "dnn_convolution": GPUS,
    "inline_ptx": GPUS,
    "intrinsics": GPUS,
    "large_shared": GPUS,
    "nvtx_domains": GPUS,
    "ort_cuda_context": GPUS,
    "textures": ("gfx942",),
    "unknown_names": GPUS,
    "wave_votes": GPUS,
}


def process(name: str, *, fix: bool) -> FileResult:
    path = HERE / "cuda" / f"{name}.cu"
    file = SourceFile(path, path.name)
    return process_text(path.read_bytes().decode("utf-8"), file, fix=fix, rename_cu_includes=True)


def golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = HERE / "expected" / name
    if request.config.getoption("--update-golden", default=False):
        path.write_bytes(text.encode("utf-8"))
    assert path.exists(), f"{path} is missing: run with --update-golden and look at it"
    assert text == path.read_bytes().decode("utf-8"), f"{path.name} is another"


def findings_text(findings: tuple[Finding, ...]) -> str:
    lines = [
        f"{f.line}:{f.column} {f.level} {f.rule}{' (fix)' if f.can_be_fixed else ''}: {f.message}\n"
        for f in sorted(findings, key=order)
    ]
    return "".join(lines)


@cache
def check_all() -> Report:
    return hipify([HERE / "cuda"], Options(fix=True, check=GPUS))


def test_there_are_enough_and_each_rule_has_one() -> None:
    from vermilion.hipify.rules.catalogue import RULES

    assert len(SOURCES) >= 25
    found = {f.rule for name in NAMES for f in process(name, fix=False).findings}
    elsewhere = {rule for rule in RULES if rule.startswith(("file-", "compile", "nvcc-option"))}
    assert set(RULES) - elsewhere - found == set(), "a rule that no source breaks"


@pytest.mark.parametrize("name", NAMES)
def test_translation_and_findings(name: str, request: pytest.FixtureRequest) -> None:
    plain, fixed = process(name, fix=False), process(name, fix=True)
    assert plain.text.count("\n") == plain.original.count("\n"), "lines stay lines"
    golden(f"{name}.hip", plain.text, request)
    if fixed.text != plain.text:
        # The size of a wave as a constant is defined in lines of its own.
        defined = 7 if "#ifndef HIPIFY_WAVE_SIZE" in fixed.text else 0
        assert fixed.text.count("\n") == fixed.original.count("\n") + defined, "lines stay lines"
        golden(f"{name}.fixed.hip", fixed.text, request)
    golden(f"{name}.txt", findings_text(plain.findings), request)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fix", [False, True])
def test_a_second_run_changes_nothing(name: str, fix: bool) -> None:
    once = process(name, fix=fix)
    again = process_text(once.text, SourceFile(Path(f"{name}.hip"), f"{name}.hip"), fix=fix)
    assert again.text == once.text
    assert not [f for f in again.findings if f.fixed]


def test_sources_cut_and_mixed_at_random_keep_their_lines_and_settle() -> None:
    chance = random.Random(8)
    pieces = []
    for path in SOURCES:
        tokens = tokenize(path.read_bytes().decode("utf-8"))
        pieces.append([tokens.raw(index) for index in range(len(tokens))])
    for _ in range(150):
        words = list(chance.choice(pieces))
        for _ in range(chance.randint(1, 20)):
            at = chance.randrange(len(words))
            words[at : at + chance.randint(0, 3)] = chance.choices(chance.choice(pieces), k=1)
        source = "".join(words)
        once = process_text(source, SourceFile(Path("x.cu"), "x.cu"), fix=True)
        defined = 7 if "#ifndef HIPIFY_WAVE_SIZE" in once.text else 0
        assert once.text.count("\n") == source.count("\n") + defined
        again = process_text(once.text, SourceFile(Path("x.hip"), "x.hip"), fix=True)
        assert again.text == once.text


@pytest.mark.needs("triton", "rocm", "llvmlite")
@pytest.mark.parametrize("name", NAMES)
def test_it_compiles_for_three_gpus(name: str, request: pytest.FixtureRequest) -> None:
    report = check_all()
    checks = {c.architecture: c for c in report.checks if c.file == f"{name}.cu"}
    assert set(checks) == set(GPUS)
    for gpu, check in checks.items():
        assert check.ok == (gpu not in REFUSED.get(name, ())), f"{gpu}: {check}"
        kernels = process(name, fix=True).text.count("__global__")
        assert not check.ok or bool(check.kernels) == bool(kernels), "kernels come out"
    said = tuple(
        f for f in report.findings if f.file == f"{name}.cu" and f.rule.startswith("compile")
    )
    if said:
        golden(f"{name}.compile.txt", findings_text(said), request)


def test_no_expected_file_is_left_over() -> None:
    stems = {path.name.split(".")[0] for path in (HERE / "expected").iterdir()}
    assert stems == set(NAMES)
