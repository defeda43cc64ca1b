"""A network laid out as steps, which show each wanted tensor while it is in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.cores import usable_cores
from vermilion.errors import Refusal
from vermilion.ir.execute import Array
from vermilion.quantize.native_run.kernel_step import Places, calls_of
from vermilion.quantize.native_run.product import Product
from vermilion.quantize.native_run.tasks import Task, borders, multiplications, tasks_of
from vermilion.quantize.native_run.tensors import Shape, Tensors, channels_last

Show = Callable[[str, Array], None]

# A thread is worth waking for so many multiplications: about 100 µs of work.
_OF_A_SHARE = 20_000_000


@dataclass(frozen=True)
class _Step:
    """Work whose calls may run side by side, then tensors that are there to be seen."""

    calls: Sequence[Callable[[], None]]
    shows: tuple[str, ...] = ()


class NativeRun:
    """Runs samples of one shape; what is shown must be copied by who keeps it."""

    def __init__(self, network: Network, threads: int) -> None:
        tasks = network.tasks
        self._inputs, self._wanted, self._tasks = network.inputs, network.wanted, tasks
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._read_real = self._wanted.union(*(task.reads_real for task in tasks))
        self._read_narrow = {task.product.source for task in tasks if task.product is not None}
        self._tensors = Tensors(network.shapes, borders(tasks))
        self._alive: list[object] = []
        self._steps = list(self._lay_out())

    def run(self, sample: Mapping[str, Array], show: Show) -> None:
        """Run one sample and show all tensors that are wanted but its inputs."""
        arrays = self._tensors.arrays
        arrays.update((name, sample[name]) for name in self._inputs)
        for step in self._steps:
            first, *others = step.calls
            waiting: list[Future[None]] = []
            try:
                if self._pool:
                    waiting.extend(self._pool.submit(self._call, call) for call in others)
                first()
                for call in others[len(waiting) :]:
                    call()
            finally:
                wait(waiting)  # an exception must not leave them writing into the next sample's
            for future in waiting:
                future.result()
            for name in step.shows:
                show(name, arrays[name])

    def _call(self, call: Callable[[], None]) -> None:
        """Call in another thread, which holds the arrays through this method until it is done."""
        call()

    def agrees(
        self, sample: Mapping[str, Array], name: str, exact: Array, most_noise: float
    ) -> bool:
        """Say whether one tensor is what it should be, noise measured as part of the signal."""
        found: list[bool] = []

        def compare(shown: str, array: Array) -> None:
            if shown == name:
                error = np.subtract(exact, array, dtype=np.float64)
                signal = np.square(exact, dtype=np.float64).sum()
                found.append(bool(np.square(error).sum() <= most_noise * signal))

        self.run(sample, compare)
        return found == [True]

    def _lay_out(self) -> Iterator[_Step]:
        last_reader = {name: task for task in self._tasks for name in task.reads}
        for task in self._tasks:
            made = {task.result}
            if task.product is None:
                yield self._operator(task)
            else:
                yield from self._product(task, task.product)
                made.add(task.product.result)
            done = {name for name in task.reads if last_reader[name] is task}
            for name in done | {name for name in made if name not in last_reader}:
                self._tensors.release(name)

    def _operator(self, task: Task) -> _Step:
        arrays, fill = self._tensors.arrays, task.fill
        assert fill is not None, "what is no product has it"
        self._tensors.real(task.result)
        out = arrays[task.result]
        # A constant, or the name of what is there by then; None for an input that is left out.
        given: list[Any] = [
            value and (str(value.name) if value.const_value is None else value.const_value.numpy())
            for value in task.node.inputs
        ]

        def call() -> None:
            fill([arrays[name] if isinstance(name, str) else name for name in given], out)

        return _Step((call,), self._shown(task.result))

    def _product(self, task: Task, product: Product) -> Iterator[_Step]:
        tensors, ending = self._tensors, task.ending
        if not tensors.has_picture(product.source):
            picture, arrays, name = tensors.picture(product.source), tensors.arrays, product.source
            yield _Step((lambda: picture.fill(channels_last(arrays[name])),))
        apart = product.result != ending.result and product.result in self._wanted
        places = Places(
            tensors.picture(product.source),
            None if ending.residual is None else tensors.real(ending.residual),
            tensors.real(product.result) if apart else None,
            tensors.real(ending.result) if ending.result in self._read_real else None,
            tensors.picture(ending.result) if ending.result in self._read_narrow else None,
        )
        shares = 1 + multiplications(task, tensors.shapes) // _OF_A_SHARE
        shape = tensors.shapes[product.result]
        calls, alive = calls_of(product, ending, places, shape, min(self._threads, shares))
        self._alive.append(alive)
        shows = self._shown(ending.result)
        yield _Step(calls, (product.result, *shows) if apart else shows)

    def _shown(self, name: str) -> tuple[str, ...]:
        return (name,) if name in self._wanted else ()


@dataclass(frozen=True)
class Network:
    """What our kernels would run; nothing is packed and no buffer is there yet."""

    tasks: Sequence[Task]
    inputs: Sequence[str]
    wanted: frozenset[str]
    shapes: Mapping[str, Shape]

    def laid_out(self, threads: int | None = None) -> NativeRun:
        """Return it with buffers and packed weights.

        Threads None are as many as there are cores.
        """
        return NativeRun(self, threads or usable_cores())


def network_of(
    model: ir.Model, wanted: frozenset[str], shapes: Mapping[str, Shape]
) -> Network | Refusal:
    """Return what makes the `wanted` tensors of `model` from inputs of these shapes."""
    tasks = tasks_of(model, wanted, shapes)
    if isinstance(tasks, Refusal):
        return tasks
    inputs = [str(v.name) for v in model.graph.inputs if any(v.name in t.reads for t in tasks)]
    return Network(tasks, inputs, wanted, shapes)
