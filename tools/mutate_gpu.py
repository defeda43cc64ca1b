"""Put faults into programs for GPUs, one at a time, and see whether the interpreter finds them.

For small networks, a GPU and a number format each, this compiles the program as the backend does,
changes one instruction of its machine code, or one operator of the GPU's module (`gpu_faults.py`),
and asks the backend's check, which executes the program without its GPU:

    caught        the check refuses the program
    missed        it takes it, and on other inputs its numbers are others than the right program's,
                  or what is changed is an order that no number shows
    not executed  the program has more instructions than the interpreter takes
    no effect     other inputs give the same bits: the row does not count
    no program    what was changed does not assemble, does not compile, or is too long for its place

Places are drawn by --seed. Returns 1 where a fault was missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "tests", "bench")]

from decoder_step import Decoder, decoder_step  # noqa: E402
from gpu_faults import MODULE_RULES, RULES, Rule  # noqa: E402

from models import mobilenet, small_cnn, transformer_block  # noqa: E402
from vermilion.amdgpu.assembly import read_assembly  # noqa: E402
from vermilion.amdgpu.code_object import assemble, without_padding  # noqa: E402
from vermilion.backends.base import Part  # noqa: E402
from vermilion.backends.iree.check_programs import (  # noqa: E402
    NOT_INTERPRETED,
    OwnProgram,
    check_programs,
)
from vermilion.backends.iree.half import to_half  # noqa: E402
from vermilion.backends.iree.own_program import execute  # noqa: E402
from vermilion.backends.iree.rewrites import pad_softmax, slice_strided  # noqa: E402
from vermilion.backends.iree.signature import Signature, signature_of  # noqa: E402
from vermilion.backends.iree.toolchain import (  # noqa: E402
    Work,
    compile_for_gpu,
    import_part,
    linker,
)
from vermilion.backends.provider.part import check_numbers  # noqa: E402
from vermilion.errors import DeviceError, Refusal, UnsupportedError  # noqa: E402
from vermilion.ir.literal.run import run_literally  # noqa: E402
from vermilion.ir.literal.types import complete_types  # noqa: E402
from vermilion.ir.passes.pipeline import simplify  # noqa: E402
from vermilion.ir.samples import draw_accepted  # noqa: E402
from vermilion.ir.samples.values import SampleKind  # noqa: E402
from vermilion.progress import no_progress  # noqa: E402

_DECODER = Decoder(layers=1, width=64, heads=4, groups=2, inner=96, vocabulary=64, longest=32)
NETWORKS = {
    "convolutions": small_cnn,
    "mobile": partial(mobilenet, image=16),
    "transformer": transformer_block,
    "decoder": partial(decoder_step, _DECODER, 2, 1, 15, 16),
}
GPUS = {
    "gfx90a": "fp32",
    "gfx950": "fp32",
    "gfx1151": "fp16",
    "gfx1030": "fp32",
    "gfx942": "fp32",
    "gfx1100": "fp16",
    "gfx1201": "fp16",
}
_FRESH: tuple[tuple[SampleKind, int], ...] = (("ordinary", 7), ("large", 8))
_TOLD = ("missed", "not executed")


@dataclass(frozen=True)
class Build:
    """A network compiled for one GPU: its program, its text, what it is held against."""

    network: str
    gpu: str
    form: Any
    part: Part
    signature: Signature
    mlir: Path
    program: OwnProgram

    @property
    def name(self) -> str:
        """The network, the GPU and the number format."""
        return f"{self.network} {self.gpu} {self.form}"


@dataclass(frozen=True)
class Trial:
    """A rule and the line, or the piece of the module, that it is for."""

    build: str
    rule: Rule
    place: int
    in_module: bool


@dataclass(frozen=True)
class Result:
    """What came of a trial; `old` and `new` are what was changed."""

    build: str
    kind: str
    name: str
    where: str
    old: str
    new: str
    outcome: str
    words: str
    seconds: float


def build(network: str, gpu: str, folder: Path) -> Build:
    """Compile a network as the backend does."""
    model = simplify(NETWORKS[network]()).model
    complete_types(model)
    part = Part("part", "gpu", "iree", model.clone(), (), 1e-5)
    slice_strided(model)
    if GPUS[gpu] == "fp16":
        model = to_half(model).model
    pad_softmax(model)
    folder.mkdir(parents=True)
    work = Work(folder, folder / "log.txt", no_progress)
    mlir = import_part(model, work)
    made = compile_for_gpu(mlir, gpu, folder / "right.vmfb", work)
    program = OwnProgram(gpu, folder / "right.vmfb", made.assemblies)
    return Build(network, gpu, GPUS[gpu], part, signature_of(model, ()), mlir, program)


def trials_of(made: Build, draw: random.Random, each: int) -> Iterator[Trial]:
    """Yield up to `each` places for every rule that has one in a program."""
    ((_, text),) = made.program.assemblies.items()
    lines, kernels = _lines(text), read_assembly(text)
    for rule in RULES:
        places = [
            at
            for at, (kernel, line) in lines.items()
            if (found := rule.pattern.fullmatch(line)) is not None
            and rule.change(found) is not None
            and not (rule.of_several and _waves(kernels[kernel]) == 1)
        ]
        for place in draw.sample(places, min(each, len(places))):
            yield Trial(made.name, rule, place, in_module=False)
    module = made.mlir.read_text(encoding="utf-8")
    for rule in MODULE_RULES:
        starts = [found.start() for found in rule.pattern.finditer(module)]
        for place in draw.sample(starts, min(1, len(starts))):
            yield Trial(made.name, rule, place, in_module=True)


def _lines(text: str) -> dict[int, tuple[str, str]]:
    """Return the instructions of all kernels by their line: the kernel, the text."""
    found, kernel = {}, ""
    names = set(read_assembly(text))
    for at, line in enumerate(text.splitlines()):
        plain = line.partition(";")[0].rstrip()
        if plain.endswith(":"):
            kernel = plain[:-1] if plain[:-1] in names else "" if "Lfunc_end" in plain else kernel
        elif kernel and plain.startswith("\t") and not plain.strip().startswith("."):
            found[at] = (kernel, plain)
    return found


def _waves(kernel: Any) -> int:
    x, y, z = kernel.workgroup
    return -(-x * y * z // kernel.lanes)


def run_trial(made: Build, trial: Trial, folder: Path) -> Result:
    """Plant the fault and ask the check."""
    begin = time.perf_counter()
    rule, where, old, new = trial.rule, "module", "", ""
    try:
        if trial.in_module:
            program, old, new = _module_fault(made, trial, folder)
        else:
            program, where, old, new = _code_fault(made, trial, folder)
        outcome, words = _judged(made, rule, program)
    except UnsupportedError as error:
        outcome, words = "no program", error.message
    seconds = time.perf_counter() - begin
    return Result(
        made.name, rule.kind, rule.name, where, old.strip(), new.strip(), outcome, words, seconds
    )


def _code_fault(made: Build, trial: Trial, folder: Path) -> tuple[OwnProgram, str, str, str]:
    """Return the program with one instruction changed. Raises: UnsupportedError."""
    ((code, text),) = made.program.assemblies.items()
    lines = text.splitlines()
    kernel, old = _lines(text)[trial.place]
    found = trial.rule.pattern.fullmatch(old)
    assert found is not None
    lines[trial.place] = new = trial.rule.change(found) or ""
    changed = "\n".join(lines) + "\n"
    faulty = assemble(without_padding(changed), (linker(),), folder, strip=True)
    if len(faulty) > len(code):
        raise UnsupportedError("the code is longer")
    place = folder / "fault.vmfb"
    data = made.program.place.read_bytes()
    assert data.count(code) == 1
    place.write_bytes(data.replace(code, faulty.ljust(len(code), b"\0")))
    return OwnProgram(made.gpu, place, {faulty: changed}), kernel, old, new


def _module_fault(made: Build, trial: Trial, folder: Path) -> tuple[OwnProgram, str, str]:
    """Return the program of a module with one operator changed. Raises: UnsupportedError."""
    text = made.mlir.read_text(encoding="utf-8")
    found = trial.rule.pattern.match(text, trial.place)
    assert found is not None
    new = trial.rule.change(found) or ""
    mlir = folder / "part.mlir"
    mlir.write_text(f"{text[: found.start()]}{new}{text[found.end() :]}", encoding="utf-8")
    work = Work(folder, folder / "log.txt", no_progress)
    compiled = compile_for_gpu(mlir, made.gpu, folder / "fault.vmfb", work)
    return OwnProgram(made.gpu, folder / "fault.vmfb", compiled.assemblies), found[0], new


def _judged(made: Build, rule: Rule, program: OwnProgram) -> tuple[str, str]:
    try:
        said = check_programs(made.part, [program], made.signature, {}, made.form, (linker(),))
    except DeviceError as error:
        return "caught", error.message
    if NOT_INTERPRETED in said:
        return "not executed", said[NOT_INTERPRETED]
    if rule.is_order:
        return "missed", "an order that no number shows"
    for kind, seed in _FRESH:
        drawn = draw_accepted(
            made.part.model, kind, partial(run_literally, made.part.model), seed=seed
        )  # type: ignore[arg-type]
        assert not isinstance(drawn, Refusal), drawn
        right, wrong = (_outputs(made, one, drawn[0].inputs) for one in (made.program, program))
        if isinstance(right, str) or isinstance(wrong, str):
            return "missed", f"{right if isinstance(right, str) else wrong}"
        for name, array in right.items():
            if array.tobytes() != wrong[name].tobytes():
                most = float(abs(array.astype("f8") - wrong[name].astype("f8")).max())
                words = f"`{name}` differs by {most:.3g} on a sample of kind {kind}"
                try:
                    check_numbers(made.part, drawn[0].inputs, wrong, made.form)
                except DeviceError:
                    return "missed", f"{words}, where the check refuses it"
                return "missed", f"{words}, which the format's bound allows"
    return "no effect", ""


def _outputs(made: Build, program: OwnProgram, inputs: Any) -> Mapping[str, Any] | str:
    try:
        ran = execute(program.place, program.assemblies, made.signature, {}, inputs, (linker(),))
    except DeviceError as error:
        return error.message
    return ran.reason if isinstance(ran, Refusal) else ran.outputs


@dataclass(frozen=True)
class Job:
    """What one process does: a network for a GPU, with the faults that are drawn for it."""

    network: str
    gpu: str
    each: int
    most: int
    seed: int
    kinds: tuple[str, ...] = ()


def mutate(job: Job) -> list[Result]:
    """Return what came of each fault.

    Raises: UnsupportedError where the right program is not executed.
    """
    with tempfile.TemporaryDirectory(prefix="vermilion-gpu-faults-") as scratch:
        made = build(job.network, job.gpu, Path(scratch) / "right")
        said = check_programs(made.part, [made.program], made.signature, {}, made.form, (linker(),))
        if NOT_INTERPRETED in said:
            raise UnsupportedError(f"without a fault: {made.name}: {said[NOT_INTERPRETED]}")
        draw, found = random.Random(f"{job.seed} {made.name}"), []
        trials = list(trials_of(made, draw, job.each))
        trials = [t for t in trials if not job.kinds or t.rule.kind in job.kinds]
        for at, trial in enumerate(draw.sample(trials, min(job.most, len(trials)))):
            folder = Path(scratch) / str(at)
            folder.mkdir()
            found.append(run_trial(made, trial, folder))
        return found


def table(results: Sequence[Result], key: str) -> str:
    """Return the counts by a field of results, as Markdown."""
    lines = [
        f"| {key} | faults | caught | missed | not executed | no effect |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    groups = sorted({getattr(row, key) for row in results})
    for group in (*groups, "all"):
        mine = Counter(r.outcome for r in results if group in (getattr(r, key), "all"))
        real = mine["caught"] + mine["missed"] + mine["not executed"]
        counts = (real, mine["caught"], mine["missed"], mine["not executed"], mine["no effect"])
        lines.append(f"| {group} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main() -> int:
    """Plant faults and print what became of them."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--jobs", type=int, default=2)
    words.add_argument("--each", type=int, default=1, help="places for each rule and program")
    words.add_argument("--most", type=int, default=1000, help="faults for each program")
    words.add_argument("--seed", type=int, default=24)
    words.add_argument("--network", action="append", choices=NETWORKS)
    words.add_argument("--gpu", action="append", choices=GPUS)
    words.add_argument("--kind", action="append", help="kinds of faults")
    words.add_argument("--json", type=Path, help="a file for all results")
    words.add_argument("--verbose", action="store_true", help="print every result")
    chosen = words.parse_args()
    begin, results = time.perf_counter(), list[Result]()
    jobs = [
        Job(network, gpu, chosen.each, chosen.most, chosen.seed, tuple(chosen.kind or ()))
        for network in chosen.network or NETWORKS
        for gpu in chosen.gpu or GPUS
    ]
    with multiprocessing.get_context("spawn").Pool(chosen.jobs, maxtasksperchild=1) as pool:
        for rows in pool.imap_unordered(mutate, jobs):
            results += rows
            told = rows if chosen.verbose else [r for r in rows if r.outcome in _TOLD]
            for row in told:
                sys.stdout.write(
                    f"{row.outcome:12} {row.seconds:5.1f} s  {row.build}, {row.where}: {row.name}:"
                    f" {row.old} -> {row.new}: {row.words}\n"
                )
            sys.stdout.flush()
    for key in ("build", "kind"):
        sys.stdout.write(f"\n{table(results, key)}\n")
    sys.stdout.write(f"\n{time.perf_counter() - begin:.0f} s\n")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    return int(any(r.outcome == "missed" for r in results))


if __name__ == "__main__":
    raise SystemExit(main())
