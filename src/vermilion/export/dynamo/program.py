"""A graph of `torch.compile` at one size, compiled: PyTorch's tensors in, PyTorch's tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vermilion.export.dynamo.facts import GraphFacts, type_name

if TYPE_CHECKING:
    import torch

    from vermilion.runtime.session import Session

_version = attrgetter("_version")


class Constants:
    """Tensors that are in the program as constants, and whether a call still has the same."""

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Take them by their positions among the arguments."""
        self.positions = tuple(tensors)
        self._tensors = tuple(tensors.values())
        self._state = self._state_now()
        # `itemgetter` of one position returns no tuple.
        self._pick = itemgetter(*self.positions) if len(self.positions) > 1 else None

    def changed(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return the positions of those that are others, or have other numbers, than they had.

        What is written through `tensor.data` leaves no trace and is not seen.
        """
        given = self._given(arguments)
        if all(map(is_, given, self._tensors)) and self._state_now() == self._state:
            return ()
        now = self._state_now()
        return tuple(
            position
            for position, one, other, state, before in zip(
                self.positions, given, self._tensors, now, self._state, strict=True
            )
            if one is not other or state != before
        )

    def _given(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        if self._pick is None:
            return tuple(arguments[position] for position in self.positions)
        given: tuple[Any, ...] = self._pick(arguments)
        return given

    def _state_now(self) -> list[tuple[int, int]]:
        """Return a row each: how often it was written to, and where its numbers lie."""
        tensors = self._tensors
        return list(zip(map(_version, tensors), [one.data_ptr() for one in tensors], strict=True))


class Program:
    """What is run in the place of the graph. Safe to call from several threads.

    `others` is a graph that PyTorch runs, of the outputs that are no tensors made here.
    """

    def __init__(
        self,
        facts: GraphFacts,
        constants: Constants,
        session: Session | None,
        inputs: Mapping[str, int],
        others: torch.fx.GraphModule | None,
    ) -> None:
        """Take an open session; `inputs` are the positions of its inputs among the arguments."""
        import torch

        self.constants = constants
        self._facts, self._session, self._others = facts, session, others
        names = [one.name for one in session.get_inputs()] if session is not None else []
        self._inputs = [(name, inputs[name]) for name in names]
        self._names = [f"output_{number}" for number in range(len(facts.computed))]
        self._data_types = [getattr(torch, name) for name in facts.data_types]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Compute the outputs of the graph."""
        computed: list[Any] = []
        if self._session is not None:
            feeds = {name: to_numpy(arguments[position]) for name, position in self._inputs}
            arrays = self._session.run(self._names, feeds)
            computed = [
                from_numpy(array, kind)
                for array, kind in zip(arrays, self._data_types, strict=True)
            ]
        if self._others is None:
            return [computed[place] for place in self._facts.places]
        others = iter(self._others(*arguments))
        return [computed[place] if place >= 0 else next(others) for place in self._facts.places]


@dataclass(frozen=True)
class Built:
    """A program with what is said of it. `sqnr_db` is of the worst output against PyTorch.

    `placement` says in one line how many operators are native, and why the rest is not.
    """

    program: Program
    operators: int = 0
    native: int = 0
    artifact: Path | None = None
    cache_hit: bool = False
    sqnr_db: float | None = None
    seconds: float = 0.0
    placement: str = ""
    digest: str = ""  # under which it is kept, if it is


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor's numbers where they lie; bfloat16 becomes float32, which numpy has."""
    if type_name(tensor.dtype) == "bfloat16":
        tensor = tensor.float()
    return tensor.numpy(force=True)


def from_numpy(array: Any, data_type: torch.dtype) -> torch.Tensor:
    """Return an array as a tensor of that type, without a copy where it has it."""
    import torch

    if not array.flags.writeable:  # a constant of the model: who writes into it writes a copy
        array = array.copy()
    return torch.from_numpy(array).to(data_type)
