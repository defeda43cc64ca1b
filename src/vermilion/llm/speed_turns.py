"""Engines side by side: each in a process of its own, taking turns on the same prompts.

What slows the machine down for longer than a round slows all engines of that round, so a ratio is
taken within a round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from vermilion.bench.figures import pair_ratios, ratio
from vermilion.bench.process import EngineProcess
from vermilion.errors import VermilionError
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.list_operators import Wanted, list_operators
from vermilion.llm.open_model import check_room
from vermilion.llm.speed import Sample, Speed, SpeedRequest, medians
from vermilion.llm.speed_engines import OURS, SpeedSetting
from vermilion.llm.speed_worker import SPEED_WORKER
from vermilion.progress import Progress, no_progress
from vermilion.rounds import in_rounds

# A model of a few billion weights may take minutes to open on a slow disk.
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class EngineSpeed:
    """One engine's figures, shortest prompt first; `failed` says why there are none."""

    name: str
    engine: str = ""
    reason: str = ""
    load_s: float = 0.0
    load_cpu_s: float = 0.0
    results: tuple[Speed, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class SpeedRatio:
    """Our time over a peer's, the median of the rounds: under 1 is faster.

    `prefill_cpu` and `decode_cpu` are of the processor's time, which on one thread holds on a
    machine at other work, too.
    """

    peer: str
    prompt_tokens: int
    prefill: float
    decode: float
    prefill_cpu: float
    decode_cpu: float


@dataclass(frozen=True)
class Limit:
    """What the memory allows: a decoded token reads every weight, and the cache.

    `bytes_per_token` is counted from the graph, with half of the longest prompt's cache; the
    bandwidth is measured, between the rounds.
    """

    bandwidth_gb_per_s: float
    bytes_per_token: float

    @property
    def tokens_per_s(self) -> float:
        """Return the speed at which the memory is busy all the time."""
        return self.bandwidth_gb_per_s * 1e9 / self.bytes_per_token


@dataclass(frozen=True)
class Comparison:
    """Everything that `llm bench` tells."""

    engines: tuple[EngineSpeed, ...]
    ratios: tuple[SpeedRatio, ...]
    limits: tuple[Limit, ...]  # one a length of prompt


def compare_speed(
    request: SpeedRequest,
    setting: SpeedSetting,
    peers: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Comparison:
    """Measure our engine and the peers in turn.

    Raises: what our own engine raises; a peer that cannot is a row with its reason.
    """
    lengths = sorted(set(request.prompts))
    check_room(read_genai_config(setting.folder), lengths[-1], request.new_tokens + 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = (OURS, *peers)
        opened: dict[str, EngineProcess] = {}
        about: dict[str, EngineSpeed] = {}
        for name in names:
            progress(f"opening {name}", len(about), len(names))
            process = stack.enter_context(
                EngineProcess(name, folder, timeout_s=TIMEOUT_S, worker=SPEED_WORKER)
            )
            about[name] = _open(name, process, setting)
            if not about[name].failed:
                opened[name] = process
        meter = stack.enter_context(
            EngineProcess("bandwidth", folder, timeout_s=TIMEOUT_S, worker=SPEED_WORKER)
        )
        samples, peaks, rates = _rounds(opened, meter, lengths, request, setting, progress)
    engines = tuple(
        _with_results(about[name], samples.get(name, {}), peaks.get(name, {}), request)
        for name in names
    )
    ratios = tuple(
        _ratio(peer, length, samples[OURS][length], samples[peer][length])
        for peer in peers
        if peer in samples
        for length in lengths
    )
    limits = tuple(
        Limit(max(rates), bytes_per_token(setting.folder, length + request.new_tokens // 2))
        for length in lengths
    )
    return Comparison(engines, ratios, limits)


def _open(name: str, process: EngineProcess, setting: SpeedSetting) -> EngineSpeed:
    try:
        reply = process.ask("open", name=name, setting=setting.as_message())
    except VermilionError as error:
        if name == OURS:
            raise
        return EngineSpeed(name, failed=error.message)
    return EngineSpeed(name, reply["engine"], reply["reason"], reply["load_s"], reply["load_cpu_s"])


def _rounds(
    opened: dict[str, EngineProcess],
    meter: EngineProcess,
    lengths: Sequence[int],
    request: SpeedRequest,
    setting: SpeedSetting,
    progress: Progress,
) -> tuple[dict[str, dict[int, list[Sample]]], dict[str, dict[int, float]], list[float]]:
    """Return every engine's samples by length, its peak memory, and the rates of the memory."""
    names = list(opened)
    samples: dict[str, dict[int, list[Sample]]] = {name: {} for name in names}
    peaks: dict[str, dict[int, float]] = {name: {} for name in opened}
    rates: list[float] = []
    for at, length in enumerate(lengths):

        def turn(name: str, number: int, length: int = length) -> Sample:
            reply = opened[name].ask("once", prompt=length, new=request.new_tokens, seed=number)
            peaks[name][length] = reply.pop("peak_rss_mb")
            return Sample(**reply)

        def step(stage: str, done: int, total: int, at: int = at) -> None:
            progress(stage, at * total + done, len(lengths) * total)

        found = in_rounds(names, turn, request.repeat, warm_up=request.warmup, progress=step)
        for name, taken in zip(names, found, strict=True):
            samples[name][length] = taken
        rates.append(meter.ask("bandwidth", threads=max(1, setting.threads))["gb_per_s"])
    return samples, peaks, rates


def _with_results(
    engine: EngineSpeed,
    samples: dict[int, list[Sample]],
    peaks: dict[int, float],
    request: SpeedRequest,
) -> EngineSpeed:
    results = tuple(
        medians(length, request.new_tokens, found, peaks[length])
        for length, found in samples.items()
    )
    return replace(engine, results=results)


def _ratio(peer: str, length: int, ours: Sequence[Sample], theirs: Sequence[Sample]) -> SpeedRatio:
    def median(of: Callable[[Sample], float]) -> float:
        return ratio(pair_ratios([of(one) for one in ours], [of(one) for one in theirs])).median

    return SpeedRatio(
        peer,
        length,
        prefill=median(lambda one: one.first_s),
        decode=median(lambda one: one.rest_s),
        prefill_cpu=median(lambda one: one.first_cpu_s),
        decode_cpu=median(lambda one: one.rest_cpu_s),
    )


def bytes_per_token(folder: Path, context: int) -> float:
    """Count the weights and the cache that one decoded token reads."""
    listed = list_operators(folder, Wanted(prompt=1, context=context))
    return float(sum(row.decode.bytes for row in listed.rows))
