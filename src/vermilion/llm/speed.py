"""How fast a folder is beside other engines: time to first token, prefill, decode, memory.

Each engine is in a process of its own; they take turns on the same prompts.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from vermilion.bench.figures import pair_ratios, ratio
from vermilion.bench.harness import EngineProcess, open_engines
from vermilion.errors import OptionError, VermilionError
from vermilion.llm.list_operators import Wanted, list_operators
from vermilion.llm.open_model import check_room, read_model_config
from vermilion.llm.speed_engines import OURS, SPEED_WORKER, Sample, SpeedSetting
from vermilion.progress import Progress, no_progress
from vermilion.rounds import in_rounds

# A model of a few billion weights may take minutes to open on a slow disk.
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class SpeedRequest:
    """What is measured: prompts of these lengths, so many new tokens, the median of `repeat`."""

    prompts: tuple[int, ...] = (128, 512)
    new_tokens: int = 64
    repeat: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        if not self.prompts or min(self.prompts) < 1:
            raise OptionError("a prompt has at least one token", hint="`-l 128,512`")
        if self.new_tokens < 2 or self.repeat < 1 or self.warmup < 0:
            raise OptionError(
                "at least two new tokens and one repetition are measured", hint="`-g 64 -r 5`"
            )


@dataclass(frozen=True)
class Speed:
    """Medians for one length of prompt. `peak_rss_mb` is of the process so far."""

    prompt_tokens: int
    new_tokens: int
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_mb: float


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
    check_room(read_model_config(setting.folder), lengths[-1], request.new_tokens + 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = (OURS, *peers)

        def opening(index: int, process: EngineProcess) -> EngineSpeed:
            return _open(names[index], process, setting)

        found = open_engines(
            stack, names, folder, opening,
            timeout_s=TIMEOUT_S, worker=SPEED_WORKER, progress=progress,
        )  # fmt: skip
        about: dict[str, EngineSpeed] = {}
        opened: dict[str, EngineProcess] = {}
        for name, one in zip(names, found, strict=True):
            if isinstance(one, VermilionError):
                about[name] = EngineSpeed(name, failed=one.message)
            else:
                opened[name], about[name] = one
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
    reply = process.ask("open", name=name, setting=setting.as_message())
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


def medians(length: int, new_tokens: int, samples: Sequence[Sample], peak_mb: float) -> Speed:
    """Return the medians of several measurements of one length."""
    first_s = statistics.median(one.first_s for one in samples)
    rest_s = statistics.median(one.rest_s for one in samples)
    return Speed(
        prompt_tokens=length,
        new_tokens=new_tokens,
        ttft_ms=first_s * 1e3,
        prefill_tokens_per_s=length / first_s,
        decode_tokens_per_s=(new_tokens - 1) / rest_s,
        peak_rss_mb=peak_mb,
    )
