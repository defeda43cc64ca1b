"""Running calibration data through the float model and counting what its tensors hold.

The tensors are fetched as extra outputs of one session. Memory is bounded by the model: where the
tensors of one sample are too large together, they are fetched in groups, each by a session of its
own, so a sample is run several times rather than kept.

After the first samples, whose outputs are kept in float32, our own kernels take over where they can
run the network: in bfloat16, in less time, and each tensor is looked at as it is made.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from vermilion.errors import ModelError, Refusal
from vermilion.ir.element_types import numpy_type
from vermilion.ir.execute import Array, open_fed_session, open_session, run_session
from vermilion.progress import Progress
from vermilion.quantize.native_run import cost_model
from vermilion.quantize.native_run.run import NativeRun, Network, network_of
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.one_thread import one_thread

_log = logging.getLogger(__name__)

GROUP_BYTES = 512 * 1024 * 1024
"""Fetched at once, at most: with ONNX Runtime's own copy this stays near a gigabyte."""


@dataclass(frozen=True)
class TensorFacts:
    """What ONNX Runtime says of a tensor, once the inputs have the shapes of the data."""

    data_type: ir.DataType
    shape: tuple[int, ...] | None  # None where it depends on values

    @property
    def elements(self) -> int | None:
        """Number of elements, None where it is unknown."""
        return None if self.shape is None else math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of one sample's tensor, 0 where it is unknown."""
        if self.elements is None or self.data_type == ir.DataType.STRING:
            return 0
        return self.elements * max(1, self.data_type.bitwidth // 8)


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of `model` (weights shared) whose outputs are the tensors called `names`."""
    copy = model.clone()
    by_name = {str(value.name): value for value in copy.graph.inputs}
    for node in copy.graph:
        by_name |= {str(value.name): value for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(by_name[name] for name in names)
    return copy


@contextmanager
def _giving(model: ir.Model, names: Sequence[str]) -> Iterator[None]:
    """Let the tensors called `names` be the outputs of `model` for a while."""
    outputs = model.graph.outputs
    own = list(outputs)
    by_name = {str(value.name): value for value in model.graph.inputs}
    by_name |= {str(value.name): value for node in model.graph for value in node.outputs}
    try:
        outputs[:] = [by_name[name] for name in names]
        yield
    finally:
        outputs[:] = own


def open_fetching(model: ir.Model, names: Sequence[str]) -> ort.InferenceSession:
    """Open a session that gives the tensors called `names`; `model` stays as it is."""
    with _giving(model, names):
        return open_session(model, quiet=True)


def tensor_facts(model: ir.Model, sample: Mapping[str, Array]) -> dict[str, TensorFacts]:
    """Return type and size of every tensor of the main graph, for inputs shaped as in `sample`."""
    known = _known_facts(model, sample)
    if known is not None:
        return known
    names = [str(v.name) for node in model.graph for v in node.outputs if v.name]
    shaped = with_outputs(model, names)
    for value in shaped.graph.inputs:
        name = str(value.name)
        if name in sample:
            value.shape = ir.Shape(sample[name].shape)
    for node in shaped.graph:
        for value in node.outputs:
            # What the file says of them may hold for other input shapes only.
            value.shape = None
    # Not optimized: nothing will run, and every tensor must still be there.
    session = open_session(shaped, optimize=False, quiet=True)
    facts = {output.name: _facts(output) for output in session.get_outputs()}
    facts |= {given.name: _facts(given) for given in session.get_inputs()}
    return facts


def types_of(facts: Mapping[str, TensorFacts]) -> dict[str, ir.DataType]:
    """Return the element types alone."""
    return {name: fact.data_type for name, fact in facts.items()}


def _known_facts(model: ir.Model, sample: Mapping[str, Array]) -> dict[str, TensorFacts] | None:
    """Return what the graph says of all its tensors, None where it leaves something open.

    A session only to ask for shapes costs as much as several runs of a large model. What the
    graph says holds where its inputs have the shapes of the sample.
    """
    values = [*model.graph.inputs, *(v for n in model.graph for v in n.outputs if v.name)]
    facts: dict[str, TensorFacts] = {}
    for value in values:
        is_tensor = isinstance(value.type, ir.TensorType)
        if (
            not is_tensor
            or value.dtype is None
            or value.shape is None
            or not value.shape.is_static()
        ):
            return None
        facts[str(value.name)] = TensorFacts(value.dtype, value.shape.numpy())
    shapes = {str(v.name): v.shape.numpy() for v in model.graph.inputs if v.shape is not None}
    fits = all(shapes.get(name) == array.shape for name, array in sample.items())
    return facts if fits else None


def _facts(argument: ort.NodeArg) -> TensorFacts:
    dtype = numpy_type(argument.type)
    if dtype is None:  # a sequence, or nothing at all
        return TensorFacts(ir.DataType.UNDEFINED, None)
    data_type = ir.DataType.from_numpy(dtype)
    shape = argument.shape
    known = shape is not None and all(isinstance(length, int) for length in shape)
    return TensorFacts(data_type, tuple(shape) if known else None)


def grouped(names: Iterable[str], facts: Mapping[str, TensorFacts], limit: int) -> list[list[str]]:
    """Split `names`, in order, so that one sample's tensors of a group stay under `limit` bytes.

    A tensor of unknown size counts as the largest known one; one over the limit stands alone.
    """
    largest = max((fact.size_bytes for fact in facts.values()), default=0)
    groups: list[list[str]] = []
    size = 0
    for name in names:
        here = largest if facts[name].elements is None else facts[name].size_bytes
        if not groups or size + here > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += here
    return groups


Statistics = Histogram | Range


class Counter(Protocol):
    """What is filled with the values of one tensor."""

    def add(self, values: Array) -> bool:
        """Count `values`; say whether all are finite."""


Fetch = Callable[[Mapping[str, Array]], dict[str, Array]]
"""One run: a sample → tensors by name."""


class Watcher(Protocol):
    """Somebody else who looks at tensors while they are there."""

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the tensors that are looked at."""

    def add(self, name: str, array: Array) -> None:
        """Look at one tensor of one sample; it must be copied to be kept."""


class OutputKeeper:
    """Keeps what the model gives for the first samples, to hold the quantized one to."""

    def __init__(self, names: Mapping[str, str], most: int) -> None:
        """Keep tensors by name here → name there, of `most` samples."""
        self._names, self._most = names, most
        self.kept: list[dict[str, Array]] = []

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the tensors that are kept."""
        return frozenset(self._names)

    def add(self, name: str, array: Array) -> None:
        """Keep one tensor of one sample."""
        there = self._names.get(name)
        if there is None:
            return
        if not self.kept or len(self.kept[-1]) == len(self._names):
            if len(self.kept) == self._most:
                return
            self.kept.append({})
        # Copied: an array of ONNX Runtime's keeps all memory of the session alive.
        self.kept[-1][there] = array.copy()


EXACT_SAMPLES = 4
"""The first samples run in float32 in any case: what they give, results are held to."""

# Where only reading them tells how many samples there are.
_USUAL_SAMPLES = 32

# Of the last tensor that is fetched, what bfloat16 may make of it; a network of 50 layers is at
# 32 dB and above, and one below 20 is none for bfloat16.
_MOST_NOISE = 0.01


class Calibrator:
    """Runs that fetch tensors, the statistics that they fill, and who else looks at them."""

    def __init__(
        self,
        model: ir.Model,
        statistics: Mapping[str, Counter],
        facts: Mapping[str, TensorFacts],
        watchers: Sequence[Watcher] = (),
        keepers: Sequence[Watcher] = (),
    ) -> None:
        """Fill `statistics`, and show `watchers` what is calibrated on, `keepers` all there is."""
        inputs = {str(value.name) for value in model.graph.inputs}
        self._model, self._facts = model, facts
        self._statistics = statistics
        self._watchers, self._keepers = watchers, keepers
        self._counts = True  # not what is held out
        names = dict.fromkeys(
            [*statistics, *sorted(n for w in (*watchers, *keepers) for n in w.wanted)]
        )
        self._inputs = [name for name in names if name in inputs]
        self._fetched = [name for name in names if name not in inputs]
        self._fetches: list[Fetch] = []  # each with a session of its own
        self._total = 0
        self._network: Network | Refusal | None = None  # None before the first sample
        self._own: NativeRun | None = None
        self.own_samples = 0
        """How many samples our own kernels ran, in bfloat16."""

    def expect(self, total: int) -> None:
        """Know beforehand how many samples there will be, 0 where only reading them tells."""
        self._total = total

    def add(self, number: int, sample: Mapping[str, Array], *, counts: bool = True) -> None:
        """Run one sample and look at all its tensors; if it `counts`, calibrate on them."""
        self._counts = counts
        show = partial(self._see, number)
        for name in self._inputs:
            show(name, sample[name])
        if self._own is not None and self._fits(sample):
            self._own.run(sample, show)
            self.own_samples += 1
            return
        if self._network is None:
            self._network = self._planned(sample, number)
            if isinstance(self._network, Refusal):
                _log.info("all samples go through ONNX Runtime: %s", self._network.reason)
        exact = self._run_exactly(sample, show)
        is_time = number + 1 >= EXACT_SAMPLES and self._own is None
        if is_time and isinstance(self._network, Network) and self._fits(sample):
            self._take_over(self._network, sample, exact)

    def _run_exactly(
        self, sample: Mapping[str, Array], show: Callable[[str, Array], None]
    ) -> dict[str, Array]:
        """Show all tensors in float32; give those of the last group."""
        found: dict[str, Array] = {}
        if not self._fetches:
            groups = grouped(self._fetched, self._facts, GROUP_BYTES)
            self._fetches = [self._fetching(group) for group in groups]
        for fetch in self._fetches:
            found = fetch(sample)
            for name, array in found.items():
                show(name, array)
        return found

    def _fetching(self, group: Sequence[str]) -> Fetch:
        """Open a session for some of the tensors."""
        if isinstance(self._network, Network):
            # What ONNX Runtime would make of the graph first takes longer than a few samples.
            with _giving(self._model, group):
                return open_fed_session(self._model, quiet=True).run
        return partial(run_session, open_fetching(self._model, group))

    def _fits(self, sample: Mapping[str, Array]) -> bool:
        facts = self._facts
        return all(
            array.dtype == np.float32 and array.shape == facts[name].shape
            for name, array in sample.items()
            if name in facts
        )

    def _planned(self, sample: Mapping[str, Array], done: int) -> Network | Refusal:
        """Return what our kernels could run once the first samples have passed."""
        shapes = {name: fact.shape for name, fact in self._facts.items()}
        real = all(fact.data_type == ir.DataType.FLOAT for fact in self._facts.values())
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        if not self._fetched or not real or len(known) < len(shapes) or not self._fits(sample):
            return Refusal("not all tensors are float32 of a known shape")
        network = network_of(self._model, frozenset(self._fetched), known)
        ahead = (self._total or _USUAL_SAMPLES) - max(done, EXACT_SAMPLES)
        if (
            isinstance(network, Network)
            and cost_model.saved_ms(network, ahead) < cost_model.LEAST_SAVED_MS
        ):
            return Refusal(f"{ahead} samples are not worth laying out this network")
        return network

    def _take_over(
        self, network: Network, sample: Mapping[str, Array], exact: dict[str, Array]
    ) -> None:
        """Lay out the network for our kernels, and hold them to what ONNX Runtime gave."""
        names = [str(v.name) for node in self._model.graph for v in node.outputs if v.name in exact]
        name, wanted = names[-1], exact[names[-1]].copy()
        # What ONNX Runtime holds goes first, so that the two are never there together.
        exact.clear()
        self._fetches.clear()
        own = network.laid_out()
        if own.agrees(sample, name, wanted, _MOST_NOISE):
            self._own = own
        else:
            _log.info("all samples go through ONNX Runtime: bfloat16 is too coarse for `%s`", name)
            self._network = Refusal("bfloat16 is too coarse for this network")

    def _see(self, number: int, name: str, array: Array) -> None:
        for keeper in self._keepers:
            keeper.add(name, array)
        if not self._counts:
            return
        statistics = self._statistics.get(name)
        if statistics is not None and not statistics.add(array):
            raise ModelError(
                f"tensor `{name}` holds NaN or infinity",
                where=f"calibration sample {number}",
                hint="look at that sample's preprocessing, or leave the node that makes the "
                "tensor out of quantization",
            )
        for watcher in self._watchers:
            watcher.add(name, array)


def observe(
    calibrator: Calibrator,
    samples: Iterable[Mapping[str, Array]],
    *,
    total: int,
    progress: Progress,
    held_out: Sequence[Mapping[str, Array]] = (),
) -> int:
    """Run all samples through `calibrator`, first those that are `held_out`; give how many."""
    count = 0
    calibrator.expect(total)
    for sample in itertools.chain(held_out, samples):
        with one_thread():  # ONNX Runtime has threads of its own
            calibrator.add(count, sample, counts=count >= len(held_out))
        count += 1
        progress("calibrate", count, total)
    return count
