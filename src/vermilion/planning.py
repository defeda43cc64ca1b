"""What a model would take where: devices, number formats, batches and splits beside each other.

The CPU of this machine is measured; an NPU is modelled, with the interval that its model has, or
not known, with the reason. A split runs one half of the graph on each of the two and hands over in
between: a run takes as long as both, a pipeline gives a result as often as the slower one does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import onnx_ir as ir

from vermilion.api import compile_model
from vermilion.backends.npu_cost import Latency, node_milliseconds
from vermilion.backends.npu_rules import column_of
from vermilion.errors import OptionError, Refusal, VermilionError
from vermilion.hardware.targets.find import all_targets, find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.cost import node_cost, value_bytes
from vermilion.ir.literal.types import complete_types
from vermilion.ir.numbers import number_format
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import Dimensions, dimension_name, open_dimensions
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import sample_inputs
from vermilion.ir.source import ModelSource, open_source
from vermilion.partition.cut import narrow_cuts
from vermilion.partition.place import Placement, plan, settle
from vermilion.progress import Progress, no_progress
from vermilion.runtime.build import backends_for, predicted_latency

How = Literal["measured", "modelled", "measured and modelled", "not known"]

_MEASURED_RUNS = 15
_MEASURED_S = 1.5
# What does not go to the device leaves no split worth its name.
_LEAST_OFFLOADED = 0.99
# A pipeline takes this share of the better device's time at most, or it is not worth its while.
_WORTH = 0.9


@dataclass(frozen=True)
class Span:
    """A quantity with the interval that is known of it. Milliseconds, or results a second."""

    middle: float
    low: float
    high: float

    def times(self, factor: float) -> Span:
        """Return the same, multiplied."""
        return Span(self.middle * factor, self.low * factor, self.high * factor)

    def plus(self, other: Span) -> Span:
        """Return the sum; the ends are added, because nothing says that they are independent."""
        return Span(self.middle + other.middle, self.low + other.low, self.high + other.high)

    def slower(self, other: Span) -> Span:
        """Return the larger of two, end by end."""
        return Span(
            max(self.middle, other.middle), max(self.low, other.low), max(self.high, other.high)
        )

    def as_rate(self, count: int) -> Span:
        """Return `count` results in so many milliseconds as results a second."""
        return Span(1e3 * count / self.middle, 1e3 * count / self.high, 1e3 * count / self.low)


@dataclass(frozen=True)
class Choice:
    """One way to run the model. `latency` is of a whole batch, in milliseconds.

    `throughput` is in results a second; None of both where nothing is known, which `reason` says.
    `numbers` is the format that is computed in, `offloaded` the share of operations on the device.
    """

    device: str
    numbers: str
    batch: int | None
    split: str
    latency: Span | None
    throughput: Span | None
    how: How
    offloaded: float
    reason: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `plan --json` prints."""
        return {
            "device": self.device,
            "numbers": self.numbers,
            "batch": self.batch,
            "split": self.split,
            "latency_ms": asdict(self.latency) if self.latency else None,
            "throughput": asdict(self.throughput) if self.throughput else None,
            "how": self.how,
            "offloaded": self.offloaded,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class DevicePlan:
    """Every choice, and what can be said of which is best: in latency, and in throughput."""

    model: str
    choices: tuple[Choice, ...]
    fastest: str
    busiest: str

    def as_json(self) -> dict[str, object]:
        """Return the keys of `plan --json`."""
        return {
            "model": self.model,
            "choices": [choice.as_json() for choice in self.choices],
            "fastest": self.fastest,
            "busiest": self.busiest,
        }


def plan_devices(
    model: ModelSource,
    *,
    label: str = "",
    targets: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    dims: Dimensions | None = None,
    progress: Progress = no_progress,
) -> DevicePlan:
    """Compare the ways to run a model.

    Args:
        model: an ONNX file, its bytes, an `onnx.ModelProto`, or a graph of `onnx_ir`.
        label: what to call it.
        targets: `cpu` and NPUs by name; the CPU and every NPU by default.
        batches: sizes of the leading dimension, where the file leaves that open.
        dims: values for the other symbolic dimensions.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can fix it.
    """
    named = [find_target(name) for name in targets] or [
        target for target in all_targets() if target.name == "cpu" or target.kind == "npu"
    ]
    source = open_source(model)
    bindings = _bindings(source, batches, dict(dims or {}))
    choices: list[Choice] = []
    for batch, bound in bindings:
        cpu_ms: Span | None = None
        for target in sorted(named, key=lambda one: one.kind != "cpu"):
            progress(f"plan {target.name}", len(choices), 0)
            if target.kind == "cpu":
                choice = _measured(source, target, batch, bound, progress)
                cpu_ms = choice.latency
                choices.append(choice)
            elif target.kind == "npu":
                first = _without_batch(source, batch, bound)
                choices += _modelled(source, target, batch, first, cpu_ms)
            else:
                words = f"no latency is modelled for a {target.kind.upper()}: measure it there"
                choices.append(_unknown(target.name, "", batch, "whole", words))
    return DevicePlan(
        label,
        tuple(choices),
        _best([c for c in choices if c.batch == bindings[0][0]], "latency"),
        _best(choices, "throughput"),
    )


Binding = tuple[int | None, dict[str, int | Sequence[int]]]


def _bindings(
    source: ir.Model, batches: Sequence[int], dims: dict[str, int | Sequence[int]]
) -> list[Binding]:
    """Return batch and dimensions of each run. Raises: OptionError where more is open."""
    name = _batch_name(source)
    if name and name not in dims:
        bindings: list[Binding] = [(batch, {**dims, name: batch}) for batch in batches]
    else:
        sizes = {v.shape[0] for v in required_inputs(source) if v.shape is not None and v.shape}
        fixed = dims.get(name) if name else sizes.pop() if len(sizes) == 1 else None
        bindings = [(fixed if isinstance(fixed, int) else None, dims)]
    model = simplify(source, dims=bindings[0][1]).model
    left = open_dimensions(model)
    if left:
        raise OptionError(
            f"what a model takes depends on sizes that are open: {', '.join(left)}",
            where=source.graph.name or "the model",
            hint=" ".join(f"--dim {one.partition(' ')[0]}=SIZE" for one in left),
        )
    return bindings


def _batch_name(source: ir.Model) -> str:
    """Return the open leading dimension that the inputs share, empty where there is none."""
    names = {
        dimension_name(value.shape[0])
        for value in required_inputs(source)
        if value.shape is not None and value.shape and not isinstance(value.shape[0], int)
    }
    return (names.pop() or "") if len(names) == 1 else ""


def _without_batch(
    source: ir.Model, batch: int | None, dims: Mapping[str, int | Sequence[int]]
) -> tuple[dict[str, int | Sequence[int]], int]:
    """Return the dimensions of one run on an NPU, and how many runs a batch takes there.

    The vendor documents a batch of 1: a larger one runs entry by entry.
    """
    name = _batch_name(source)
    if name and name in dims and batch:
        return {**dims, name: 1}, batch
    return dict(dims), 1


def _measured(
    source: ir.Model, target: Target, batch: int | None, dims: Dimensions, progress: Progress
) -> Choice:
    """Compile for this machine's CPU and measure it."""
    numbers = number_format(source)
    try:
        compiled = compile_model(source, target=target.name, dims=dims, progress=progress)
        inputs = sample_inputs(simplify(source, dims=dims).model)
        with compiled.session() as session:
            session.run(None, inputs)
            times: list[float] = []
            while len(times) < _MEASURED_RUNS and sum(times) < 1e3 * _MEASURED_S:
                begin = time.perf_counter()
                session.run(None, inputs)
                times.append(1e3 * (time.perf_counter() - begin))
    except VermilionError as error:
        return _unknown("cpu", numbers, batch, "whole", error.message)
    latency = Span(float(np.median(times)), min(times), max(times))
    return Choice(
        "cpu", numbers, batch, "whole", latency, latency.as_rate(batch or 1), "measured", 1.0
    )


def _modelled(
    source: ir.Model,
    target: Target,
    batch: int | None,
    run: tuple[dict[str, int | Sequence[int]], int],
    cpu_ms: Span | None,
) -> Iterator[Choice]:
    """Yield what an NPU would take, in each number format that it has for the model."""
    from vermilion.runtime.block_numbers import settled_numbers

    dims, runs = run
    simplified = simplify(source, dims=dims).model
    complete_types(simplified)
    model = settled_numbers(simplified, target, "auto")[0]
    for numbers in _formats(model, target):
        placement = _placed(model, target, numbers)
        found = predicted_latency(model, placement, numbers)
        share = _offloaded(placement)
        words = numbers if numbers == number_format(model) else f"{numbers}, once quantized"
        if not isinstance(found, Latency):
            reason = found.reason if isinstance(found, Refusal) else _nothing(placement)
            yield _unknown(target.name, words, batch, "whole", reason, share)
            continue
        npu_ms = Span(found.total_ms, found.low_ms, found.high_ms).times(runs)
        rest_ms = cpu_ms.times(1.0 - share) if cpu_ms is not None else None
        yield _with_rest(target, words, batch, share, npu_ms, rest_ms)
        if cpu_ms is not None and share >= _LEAST_OFFLOADED:
            yield from _split(model, target, (words, numbers), batch, npu_ms, cpu_ms)


def _formats(model: ir.Model, target: Target) -> tuple[str, ...]:
    """Return the model's own format, and for floats the integers that it can be quantized to."""
    own = number_format(model)
    takes_floats = column_of(own) == "bf16"
    if takes_floats and "xint8" in target.formats:
        return (own, "xint8") if "bf16" in target.formats else ("xint8",)
    return (own,)


def _placed(model: ir.Model, target: Target, numbers: str) -> Placement:
    device, cpu, _ = backends_for(target)
    return settle(plan(model, target, device, cpu, numbers=numbers), {})


def _nothing(placement: Placement) -> str:
    """Return the reason that most nodes have for not being on the NPU."""
    reasons = Counter(node.reason for node in placement.nodes if node.reason)
    return f"nothing of it runs there: {reasons.most_common(1)[0][0]}" if reasons else "it is empty"


def _offloaded(placement: Placement) -> float:
    whole = placement.cost.operations
    on = sum(node.operations for node in placement.nodes if node.device == placement.target.kind)
    return on / whole if whole else 0.0


def _with_rest(
    target: Target, numbers: str, batch: int | None, share: float, npu: Span, rest: Span | None
) -> Choice:
    """Return the choice with all on the NPU that it takes, and the rest on the CPU."""
    if share >= _LEAST_OFFLOADED:
        rate = npu.as_rate(batch or 1)
        return Choice(target.name, numbers, batch, "whole", npu, rate, "modelled", share)
    if rest is None:
        reason = f"{1 - share:.0%} of its work is the CPU's, which was not measured"
        return _unknown(target.name, numbers, batch, "NPU and CPU", reason, share)
    return Choice(
        f"{target.name} and cpu",
        numbers,
        batch,
        "what the NPU takes, the rest on the CPU; pipelined",
        npu.plus(rest),
        npu.slower(rest).as_rate(batch or 1),
        "measured and modelled",
        share,
    )


def _split(
    model: ir.Model,
    target: Target,
    numbers: tuple[str, str],
    batch: int | None,
    npu: Span,
    cpu: Span,
) -> Iterator[Choice]:
    """Yield the cut into two halves that gives the most results, where it gives more than either.

    Each half takes its share of the whole: of what its layers take on the NPU, of its operations
    on the CPU.
    """
    words, form = numbers
    on_npu = _shares(node_milliseconds(form, list(model.graph)))
    on_cpu = _shares([float(node_cost(node).operations) for node in model.graph])
    best: tuple[float, Choice] | None = None
    for at, tensors in narrow_cuts(model):
        for first in (target.name, "cpu"):
            npu_share = on_npu[at] if first == target.name else 1.0 - on_npu[at]
            cpu_share = 1.0 - on_cpu[at] if first == target.name else on_cpu[at]
            halves = npu.times(npu_share), cpu.times(cpu_share)
            slower = halves[0].slower(halves[1])
            if not 0 < slower.middle < _WORTH * min(npu.middle, cpu.middle):
                continue
            if best is None or slower.middle < best[0]:
                crossing = sum(value_bytes(value) for value in tensors) / 1e6
                second = "cpu" if first == target.name else target.name
                where = (
                    f"{at} operators on {first}, {len(model.graph) - at} on {second}, pipelined;"
                    f" {crossing:.2f} MB between"
                )
                whole = halves[0].plus(halves[1])
                choice = Choice(
                    f"{first} then {second}", words, batch, where, whole,
                    slower.as_rate(batch or 1), "measured and modelled", npu_share,
                )  # fmt: skip
                best = slower.middle, choice
    if best is not None:
        yield best[1]


def _shares(parts: Sequence[float]) -> list[float]:
    """Return which share of the sum lies before each position."""
    total = sum(parts) or 1.0
    return [0.0, *(sofar / total for sofar in accumulate(parts))]


def _unknown(
    device: str, numbers: str, batch: int | None, split: str, reason: str, share: float = 0.0
) -> Choice:
    return Choice(device, numbers, batch, split, None, None, "not known", share, reason)


def _best(choices: Sequence[Choice], quantity: Literal["latency", "throughput"]) -> str:
    """Say which choice is best, if its interval says so; else between which it cannot be said."""
    known = [(c, getattr(c, quantity)) for c in choices if getattr(c, quantity) is not None]
    if not known:
        return "nothing is known of any: measure on the devices"
    is_less = quantity == "latency"
    ordered = sorted(known, key=lambda pair: pair[1].middle if is_less else -pair[1].middle)
    (best, span), *others = ordered
    rivals = [
        _name(other) for other, its in others
        if (its.low <= span.high if is_less else its.high >= span.low)
    ]  # fmt: skip
    if not rivals:
        return _name(best)
    return f"{_name(best)} by its middle; the intervals do not tell it from {', '.join(rivals)}"


def _name(choice: Choice) -> str:
    batch = f", batch {choice.batch}" if choice.batch not in (None, 1) else ""
    return f"{choice.device} ({choice.numbers}{batch})"
