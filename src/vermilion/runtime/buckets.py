"""Several programs of one model, each for fixed sizes: a request goes to the one that it fits.

Nothing is compiled here. A request of another size is refused, or, where the caller says with what,
padded up to the next program and its outputs cut. Padding is right only for models that mask it, so
that is tried before it is done: what the smallest program computes must be what a larger one
computes from the same inputs, padded.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import ArtifactError, OptionError
from vermilion.forks import renew_after_fork
from vermilion.ir.samples import sample_inputs
from vermilion.proof.bounds import FormatName
from vermilion.proof.check import check_output
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.feeds import shape_text
from vermilion.runtime.manifest import TensorRecord
from vermilion.runtime.session import Session

# Two programs of one model add in other orders; whichever format they compute in, no more than
# bfloat16's roundings may lie between them. Padding that is not masked changes far more.
_BOUND: FormatName = "bf16"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Cut:
    """How far an axis of an output is of use: an input's size, divided."""

    output: str
    axis: int
    input: str
    input_axis: int
    divided_by: int


class BucketSession:
    """Programs of one model for several sizes. Safe to call from several threads."""

    def __init__(
        self,
        artifacts: Sequence[str | os.PathLike[str]],
        *,
        pad: float | Mapping[str, float] | None = None,
        threads: int = 0,
    ) -> None:
        """Open bundles of one model; a program is loaded when a request first needs it.

        `pad` is what inputs are filled up with, one number or one for each input's name; None
        refuses what fits no program exactly.
        Raises: OptionError for bundles that are not of one model, or of open sizes.
        """
        self._readers = [open_artifact(path) for path in artifacts]
        self._shapes = [_input_shapes(reader) for reader in self._readers]
        _check_alike(self._readers)
        self._varying = {
            (name, axis)
            for name, shape in self._shapes[0].items()
            for axis in range(len(shape))
            if len({shapes[name][axis] for shapes in self._shapes}) > 1
        }
        self._pad, self._threads = pad, threads
        self._sessions: dict[int, Session] = {}
        self._lock = threading.Lock()
        self._cuts: tuple[_Cut, ...] | None = None
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever held it is not there."""
        self._lock = threading.Lock()

    def choose(self, inputs: Mapping[str, Array]) -> tuple[int, bool]:
        """Return the number of the program for these inputs, and whether they must be padded.

        Raises: OptionError where none fits, or padding is not allowed.
        """
        wanted = {name: np.shape(array) for name, array in inputs.items()}
        fitting = [at for at, shapes in enumerate(self._shapes) if self._fits(wanted, shapes)]
        if not fitting:
            raise OptionError(
                f"no program has room for {_text(wanted)}",
                hint=f"there is {self._offer()}, and an axis that is the same in all of them is"
                " never padded; compile one for this size",
            )
        best = min(fitting, key=lambda at: sum(map(math.prod, self._shapes[at].values())))
        is_exact = self._shapes[best] == wanted
        if not is_exact and self._pad is None:
            raise OptionError(
                f"no program is for {_text(wanted)}",
                hint=f"there is {self._offer()}; allow padding (`--pad 0`), or compile one for this"
                " size",
            )
        return best, not is_exact

    def run(
        self, output_names: Sequence[str] | None, inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Compute the outputs that are named, all where none is, at the sizes of the inputs."""
        at, is_padded = self.choose(inputs)
        if not is_padded:
            return self._run(at, inputs, output_names)
        cuts = self._proven_cuts()
        made = self._run(at, self._padded(inputs, self._shapes[at]), output_names)
        return _cut(made, cuts, {name: np.shape(array) for name, array in inputs.items()})

    def runs_on(self, at: int) -> list[str]:
        """Say where the program of that number runs."""
        return self._session(at).runs_on

    def close(self) -> None:
        """Close every program."""
        for session in self._sessions.values():
            session.close()

    def _session(self, at: int) -> Session:
        with self._lock:
            if at not in self._sessions:
                self._sessions[at] = Session(self._readers[at], threads=self._threads)
            return self._sessions[at]

    def _run(
        self, at: int, inputs: Mapping[str, Array], names: Sequence[str] | None
    ) -> dict[str, Array]:
        session = self._session(at)
        known = list(names or (record.name for record in session.manifest.outputs))
        return dict(zip(known, session.run(known, inputs), strict=True))

    def _padded(self, inputs: Mapping[str, Array], shapes: Mapping[str, Shape]) -> dict[str, Array]:
        filled = {}
        for name, array in inputs.items():
            more = [(0, room - size) for size, room in zip(array.shape, shapes[name], strict=True)]
            value = self._pad.get(name, 0.0) if isinstance(self._pad, Mapping) else self._pad
            filled[name] = np.pad(array, more, constant_values=np.asarray(value, array.dtype))
        return filled

    def _proven_cuts(self) -> tuple[_Cut, ...]:
        """Return how outputs are cut, once padding was seen to change nothing that is left.

        Raises: OptionError where it does, or where two programs do not tell.
        """
        if self._cuts is None:
            pairs = [
                (small, large)
                for small, a in enumerate(self._shapes)
                for large, b in enumerate(self._shapes)
                if a != b and self._fits(a, b)
            ]
            if not pairs:
                raise OptionError(
                    "padding cannot be tried with programs of which none fits into another",
                    hint="add a program for a smaller size",
                )
            small, large = min(
                pairs, key=lambda p: sum(map(math.prod, self._shapes[p[1]].values()))
            )
            cuts = find_cuts([reader.manifest.outputs for reader in self._readers], self._shapes)
            self._try_padding(small, large, cuts)
            self._cuts = cuts
        return self._cuts

    def _try_padding(self, small: int, large: int, cuts: tuple[_Cut, ...]) -> None:
        inputs = sample_inputs(self._readers[small].model())
        expected = self._run(small, inputs, None)
        padded = self._run(large, self._padded(inputs, self._shapes[large]), None)
        found = _cut(padded, cuts, self._shapes[small])
        for name, array in expected.items():
            check = check_output(name, array, found[name], _BOUND)
            if not check.passed:
                raise OptionError(
                    f"padding changes the output `{name}`: {check} between"
                    f" {_text(self._shapes[small])} and the same, padded",
                    hint="the model does not mask what is padded: pad with another value, or"
                    " compile programs for the sizes that come",
                )

    def _fits(self, wanted: Mapping[str, Shape], room: Mapping[str, Shape]) -> bool:
        """Say whether inputs fit; along an axis that no two programs differ in, exactly.

        How outputs follow such an axis is told by nothing.
        """
        if wanted.keys() != room.keys():
            return False
        return all(
            len(shape) == len(room[name])
            and all(
                size == limit or (size < limit and (name, axis) in self._varying)
                for axis, (size, limit) in enumerate(zip(shape, room[name], strict=True))
            )
            for name, shape in wanted.items()
        )

    def _offer(self) -> str:
        return ", ".join(_text(shapes) for shapes in self._shapes)


def find_cuts(
    outputs: Sequence[Sequence[TensorRecord]], inputs: Sequence[Mapping[str, Shape]]
) -> tuple[_Cut, ...]:
    """Find which input's size each axis of an output follows, from all programs together.

    Raises: OptionError for an axis that follows none.
    """
    cuts = []
    for records in zip(*outputs, strict=True):
        name = records[0].name
        for axis, sizes in enumerate(zip(*(r.shape or () for r in records), strict=True)):
            if len(set(sizes)) > 1:
                cuts.append(_followed(name, axis, sizes, inputs))
    return tuple(cuts)


def _followed(
    name: str, axis: int, sizes: Sequence[object], inputs: Sequence[Mapping[str, Shape]]
) -> _Cut:
    for source, shape in inputs[0].items():
        for at in range(len(shape)):
            theirs = [shapes[source][at] for shapes in inputs]
            divided_by = _ratio(theirs, sizes)
            if divided_by:
                return _Cut(name, axis, source, at, divided_by)
    raise OptionError(
        f"axis {axis} of the output `{name}` follows no input's size, so that it cannot be cut",
        hint="run such sizes on programs of their own",
    )


def _ratio(theirs: Sequence[int], sizes: Sequence[object]) -> int:
    """Return the whole number that every input's size is of the output's, 0 where there is none."""
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    ratios = {a / b for a, b in zip(theirs, known, strict=False)}
    is_whole = len(known) == len(theirs) and len(ratios) == 1 and min(ratios).is_integer()
    return int(min(ratios)) if is_whole else 0


def _cut(
    outputs: Mapping[str, Array], cuts: Sequence[_Cut], inputs: Mapping[str, Shape]
) -> dict[str, Array]:
    made = dict(outputs)
    for cut in cuts:
        if cut.output in made:
            size = inputs[cut.input][cut.input_axis]
            left, rest = divmod(size, cut.divided_by)
            if rest:
                raise OptionError(
                    f"{size} of `{cut.input}` is no multiple of {cut.divided_by}: how much of"
                    f" `{cut.output}` is of use cannot be told",
                    hint="pad the input to a multiple yourself",
                )
            made[cut.output] = made[cut.output].take(range(left), axis=cut.axis)
    return made


def _input_shapes(reader: ArtifactReader) -> dict[str, Shape]:
    shapes = {}
    for record in reader.manifest.inputs:
        sizes = record.shape or ()
        if record.shape is None or not all(isinstance(size, int) for size in sizes):
            raise OptionError(
                f"the input `{record.name}` has dynamic sizes: {shape_text(sizes)}",
                where=str(reader.path),
                hint="compile each program with `--dim`",
            )
        shapes[record.name] = tuple(size for size in sizes if isinstance(size, int))
    return shapes


def _check_alike(readers: Sequence[ArtifactReader]) -> None:
    if not readers:
        raise OptionError("no program is named")
    first = _interface(readers[0])
    for reader in readers[1:]:
        if _interface(reader) != first:
            raise ArtifactError(
                "the programs are not of one model: their inputs or outputs differ",
                where=str(reader.path),
                hint="compile one model at several sizes",
            )


def _interface(reader: ArtifactReader) -> tuple[tuple[str, str, int], ...]:
    manifest = reader.manifest
    return tuple(
        (r.name, r.type, len(r.shape or ())) for r in (*manifest.inputs, *manifest.outputs)
    )


def _text(shapes: Mapping[str, Shape]) -> str:
    return " ".join(f"{name} {shape_text(shape)}" for name, shape in shapes.items())
