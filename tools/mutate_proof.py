"""Put faults into the compiler on purpose, one at a time, and see whether the proof finds them.

For every row of `proof_float_faults.py` and `proof_integer_faults.py` this forks, changes one line
of the compiler in memory, compiles a small model that runs through it, and holds what is handed out
against what the right compiler gives on inputs that are none of the proof's:

    caught      it was refused, or its nodes were left out by the proof
    missed      it was handed out as proven, and its numbers are wrong
    no effect   its numbers are right: the row does not count, and should be another
    stale       the line is not there any more: the row has to be written anew

Returns 1 where a fault was missed or a row is stale.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from patch_module import patch
from proof_fault import FORMATS, Fault
from proof_float_faults import FAULTS as FLOAT_FAULTS
from proof_index_faults import FAULTS as INDEX_FAULTS
from proof_integer_faults import FAULTS as INTEGER_FAULTS
from proof_integer_faults import GPU_FAULTS, PROVIDER_FAULTS

FAULTS = (*FLOAT_FAULTS, *INDEX_FAULTS, *INTEGER_FAULTS, *GPU_FAULTS, *PROVIDER_FAULTS)
ROOT = Path(__file__).resolve().parent.parent
_PLACES = [str(ROOT / name) for name in ("src", "tests")]
sys.path[:0] = _PLACES
# Loaded once, before the children are forked; nothing of them has threads until it is used.
_LOADED = ("onnxruntime", "llvmlite.binding", "vermilion.api", "proof_models", "models")
_COARSE = {"bf16": "bf16", "dynamic-bf16": "bf16", "gpu-fp16": "fp16"}
_LIMIT_SECONDS = 180
_FRESH = 3

Outcome = Literal["caught", "missed", "no effect", "stale", "broken"]


@dataclass(frozen=True)
class Trial:
    """One fault in one number format."""

    fault: Fault
    format: str

    @property
    def label(self) -> str:
        """What the base of outputs is kept under: the model, compiled right in this format."""
        return f"{self.fault.model}-{self.format}-{self.fault.target}"


@dataclass(frozen=True)
class Result:
    """What came of a trial; `words` say what was seen."""

    name: str
    file: str
    format: str
    kind: str
    outcome: Outcome
    words: str
    seconds: float


# What a child does --------------------------------------------------------------------------------


def _opened(trial: Trial, folder: Path, *, is_right: bool) -> tuple[list[str], Any, str]:
    """Compile; return the proof's notes, a function from inputs to outputs, and what to draw."""
    from proof_models import model_of, with_dynamic_sizes

    from vermilion.api import compile_model

    if trial.format == "provider":
        from proof_providers import open_provider

        return open_provider(trial.fault, folder, is_right=is_right)
    precision, target = FORMATS[trial.format]
    if trial.fault.target:
        target = trial.fault.target
    model = model_of(trial.fault.model)
    if trial.format.startswith("dynamic"):
        model = with_dynamic_sizes(model)
    compiled = compile_model(model, precision=precision, target=target, cache_dir=folder / "cache")
    session = compiled.session(threads=2)
    names = [output.name for output in session.get_outputs()]
    unproven = [
        f"`{row['name']}` is {row['status']}"
        for row in compiled.report.verification
        if row["status"] != "proven"
    ]
    # A pass that changes what the model computes is left out by `simplify`, a region that cannot
    # be compiled is left to ONNX Runtime: the compiler's own checks are part of the proof.
    passes = [
        f"{row['name']} {refusal['reason']}"
        for row in compiled.report.passes
        for refusal in row["refusals"]  # type: ignore[attr-defined]
        if "left out" in refusal["reason"]
    ]
    failed = [
        f"left out: {row['reason']}"
        for row in compiled.report.nodes
        if "failed to compile" in str(row["reason"])
    ]
    notes = [*compiled.report.notes, *passes, *failed, *unproven]
    return (
        notes,
        lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)),
        trial.fault.model,
    )


def _fresh_inputs(model: Any, seed: int) -> dict[str, Any]:
    """Return inputs that are none of the proof's: of another generator, small, middling, large."""
    import numpy as np

    random = np.random.default_rng(1000 + seed)
    scale = (1.0, 0.05, 12.0)[seed % 3]
    found: dict[str, Any] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.dtype is not None
        shape = tuple(int(size) for size in value.shape)  # type: ignore[arg-type]
        kind = value.dtype.numpy()
        if kind.kind == "f":
            found[str(value.name)] = (scale * random.standard_normal(shape)).astype(kind)
        elif kind.itemsize == 1:
            found[str(value.name)] = random.integers(
                np.iinfo(kind).min, np.iinfo(kind).max + 1, shape
            ).astype(kind)
        else:
            low, high = (0, 4) if value.name == "k" and len(shape) == 1 else (-1000, 1000)
            found[str(value.name)] = random.integers(low, high, shape).astype(kind)
    return found


def _found(trial: Trial, base: Path, folder: Path, *, is_right: bool) -> tuple[Outcome, str]:
    """Compile with the fault in place and say what came of it."""
    import numpy as np
    from proof_models import model_of

    from vermilion.errors import VermilionError

    try:
        notes, run, name = _opened(trial, folder, is_right=is_right)
    except VermilionError as error:
        return "caught", f"{type(error).__name__}: {error.message}"
    except Exception as error:  # a fault may break a compiler: nothing is handed out
        return "caught", f"the compiler fails: {type(error).__name__}: {error}"
    out = [note for note in notes if "left out" in note or "without its optimizations" in note]
    if out:
        return "caught", out[0]
    model = model_of(name)
    wrong = ""
    for seed in range(_FRESH):
        file = base / f"{trial.label}-{seed}.npz"
        outputs = run(_fresh_inputs(model, seed))
        if is_right:
            np.savez(file, **outputs)
        with np.load(file) as right:
            wrong = wrong or _difference(trial, right, outputs)
    if not wrong:
        return "no effect", ""
    said = [note for note in notes if "not proven" in note]
    return "missed", f"{wrong}{'; it says: ' + said[0] if said else ''}"


def _difference(trial: Trial, right: Any, outputs: Any) -> str:
    """Say how the outputs differ by more than the format's bound, empty where they do not."""
    from vermilion.proof.bounds import format_of
    from vermilion.proof.check import check_output

    for name, array in outputs.items():
        form = format_of(array)
        if form == "fp32":
            form = _COARSE.get(trial.format, "fp32")
        check = check_output(name, right[name], array, form)
        if not check.passed:
            return f"`{name}`: {check}"
    return ""


def _child(trial: Trial, base: Path, answer: Path, *, is_right: bool) -> None:
    """Run one trial in this process, which is a fork, and end it."""
    status = 1
    try:
        signal.alarm(_LIMIT_SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        stale = "" if is_right or trial.format == "provider" else _patched(trial.fault)
        outcome, words = ("stale", stale) if stale else ("broken", "")
        if not stale:
            with tempfile.TemporaryDirectory(prefix="vermilion-fault-") as folder:
                outcome, words = _found(trial, base, Path(folder), is_right=is_right)
        loaded = [name for name in sys.modules if name.startswith("vermilion")]
        answer.write_text(json.dumps([outcome, words, loaded]), encoding="utf-8")
        status = 0
    except BaseException:
        text = traceback.format_exc()[-600:]
        answer.write_text(json.dumps(["broken", text, []]), encoding="utf-8")
    finally:
        os._exit(status)


def _patched(fault: Fault) -> str:
    path = Path(fault.file).relative_to("src").with_suffix("")
    return patch(importlib.import_module(".".join(path.parts)), fault.old, fault.new)


# What the parent does -----------------------------------------------------------------------------


def _result(trial: Trial, outcome: Outcome, words: str, seconds: float = 0.0) -> Result:
    fault = trial.fault
    return Result(fault.name, fault.file, trial.format, fault.kind, outcome, words, seconds)


def _run_all(trials: Sequence[Trial], jobs: int, base: Path, *, is_right: bool) -> Iterator[Result]:
    """Run trials in forks, `jobs` at a time; what they had to load is loaded here, too."""
    waiting = list(trials)
    running: dict[int, tuple[Trial, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            trial = waiting.pop(0)
            process = os.fork()
            if not process:
                _child(trial, base, base / f"answer-{os.getpid()}.json", is_right=is_right)
            running[process] = trial, time.perf_counter()
        process, status = os.wait()
        trial, begin = running.pop(process)
        answer = base / f"answer-{process}.json"
        if answer.is_file():
            outcome, words, loaded = json.loads(answer.read_text(encoding="utf-8"))
            answer.unlink()
            for name in loaded if is_right else ():
                importlib.import_module(name)
        else:
            outcome, words = "broken", f"it ended with {os.waitstatus_to_exitcode(status)}"
        yield _result(trial, outcome, words, time.perf_counter() - begin)


def mutate(
    trials: Sequence[Trial], jobs: int, told: Callable[[Result], None] | None = None
) -> list[Result]:
    """Return what came of every trial, in the order in which they ended."""
    for name in _LOADED:
        importlib.import_module(name)
    os.environ["PYTHONPATH"] = os.pathsep.join(_PLACES)
    importlib.import_module("vermilion.version").code_digest()
    results = []
    with tempfile.TemporaryDirectory(prefix="vermilion-faults-") as scratch:
        base = Path(scratch)
        rights = {trial.label: trial for trial in trials}
        for result in _run_all(list(rights.values()), jobs, base, is_right=True):
            if result.outcome != "no effect":
                raise SystemExit(f"without a fault: {result.name}: {result.words}")
        for result in _run_all(trials, jobs, base, is_right=False):
            results.append(result)
            if told is not None:
                told(result)
    return results


def trials_of(faults: Sequence[Fault], formats: Sequence[str] | None = None) -> list[Trial]:
    """Return a trial for each fault and number format that it touches."""
    return [
        Trial(fault, form)
        for fault in faults
        for form in fault.formats
        if formats is None or form in formats
    ]


def table(results: Sequence[Result]) -> str:
    """Return the table by number format, as Markdown."""
    lines = ["| format | faults | caught | missed | share |", "|---|---:|---:|---:|---:|"]
    for form in dict.fromkeys((*FORMATS, "provider")):
        mine = [r for r in results if r.format == form and r.outcome in ("caught", "missed")]
        if mine:
            caught = sum(r.outcome == "caught" for r in mine)
            share = f"{caught / len(mine):.1%}"
            lines.append(f"| {form} | {len(mine)} | {caught} | {len(mine) - caught} | {share} |")
    return "\n".join(lines)


def main() -> int:
    """Run the faults that are asked for and print what became of them."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--format", action="append", choices=(*FORMATS, "provider"))
    words.add_argument("--only", action="append", help="names of faults, or parts of them")
    words.add_argument("--json", type=Path, help="a file for all results")
    words.add_argument("--once", action="store_true", help="in the first of its formats alone")
    words.add_argument("--verbose", action="store_true", help="print every result")
    chosen = words.parse_args()
    names = {fault.name for fault in FAULTS}

    def is_chosen(name: str) -> bool:
        return any(word == name or (word not in names and word in name) for word in chosen.only)

    faults = [fault for fault in FAULTS if not chosen.only or is_chosen(fault.name)]
    begin = time.perf_counter()

    def tell(result: Result) -> None:
        if chosen.verbose or result.outcome not in ("caught",):
            sys.stdout.write(
                f"{result.outcome:9} {result.format:8} {result.seconds:5.1f} s  {result.name}:"
                f" {result.words}\n"
            )
            sys.stdout.flush()

    trials = trials_of(faults, chosen.format)
    if chosen.once:
        trials = list({trial.fault.name: trial for trial in reversed(trials)}.values())[::-1]
    results = mutate(trials, chosen.jobs, tell)
    sys.stdout.write(f"\n{table(results)}\n\n{time.perf_counter() - begin:.0f} s\n")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    return int(any(r.outcome in ("missed", "stale", "broken") for r in results))


if __name__ == "__main__":
    raise SystemExit(main())
