"""What a search for a kept promise can try, scheme by scheme, in which order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import onnx_ir as ir

from vermilion.ir.execute import Array
from vermilion.progress import Progress
from vermilion.quantize.cost import eight_bit_share
from vermilion.quantize.formats import DynamicScheme, FloatScheme, WeightScheme, scheme_named
from vermilion.quantize.hold_out import HeldOut
from vermilion.quantize.look import Seen, look
from vermilion.quantize.options import BLOCKS, Options
from vermilion.quantize.other_schemes import SeenOther, finish_other, look_other, make_other
from vermilion.quantize.own_ranges import own_ranges
from vermilion.quantize.quantize import decide, finish, write
from vermilion.quantize.result import Quantized
from vermilion.quantize.scales import own_method
from vermilion.quantize.sensitivity import Damage, measure_damage, widened_for

_DAMAGE_SAMPLES = 8
_STEP = 2.0  # 3 dB: noise that a trial leaves, relative to the one before
_MOST_RUNGS = 8
_HALVINGS = 3

# Of a node whose weights, inputs and outputs have 8 significant bits: three times (2⁻⁹)² ÷ 3.
_BFLOAT_NOISE = 2.0**-18


class Tried(Protocol):
    """What is known of a trial."""

    @property
    def met(self) -> bool:
        """Whether it keeps the promise."""

    @property
    def options(self) -> Options:
        """What was tried."""


class Search(Protocol):
    """Who measures trials."""

    def attempt(self, what: str, options: Options) -> Any:
        """Quantize so, and measure."""

    def is_end(self, trial: Any) -> bool:
        """Say whether no other trial could show more."""

    def best(self) -> Any:
        """Return the best trial so far."""

    def missing_db(self) -> float | None:
        """Return by how much the best trial misses a promised SQNR; None: a drop was promised."""


class Ladder(Protocol):
    """A model that has seen its samples, and what can be made of it."""

    @property
    def damage(self) -> Sequence[Damage]:
        """What each rounded tensor does, where that was measured."""

    def make(self, options: Options) -> tuple[ir.Model, float]:
        """Quantize; give the model, and the part of all operations that is on 8 bits or fewer."""

    def climb(self, options: Options, search: Search) -> None:
        """Try one thing after the other."""

    def finish(self, options: Options, progress: Progress, *, details: bool) -> Quantized:
        """Quantize and describe."""


def integer_ladder(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    held: HeldOut,
    options: Options,
    progress: Progress,
    raises_to: Literal["exclude", "bfloat"] = "exclude",
) -> Integers:
    """Run the samples through the float model, for any options of an integer scheme.

    `raises_to` says where nodes go whose weights are too coarse in 8 bits: to float, or where that
    is enough to bfloat16.
    """
    looked = dataclasses.replace(options, rounding="compensated")
    seen = look(model, samples, looked, progress, histograms=True, held=held)
    return Integers(model, seen, held, progress, raises_to)


class Integers:
    """Schemes that round activations to integers."""

    def __init__(
        self,
        model: ir.Model,
        seen: Seen,
        held: HeldOut,
        progress: Progress,
        raises_to: Literal["exclude", "bfloat"] = "exclude",
    ) -> None:
        self._model, self.seen, self._progress = model, seen, progress
        self._raises_to = raises_to
        self._samples = held.samples[:_DAMAGE_SAMPLES]
        self._nodes: set[str] = set()
        self.damage: list[Damage] = []

    def make(self, options: Options) -> tuple[ir.Model, float]:
        """Quantize; give the model, and the part of all operations that is on 8 bits."""
        decided = decide(self.seen, options)
        share = eight_bit_share(decided.work.graph, decided.plan, decided.constants.parameters)
        write(decided)
        return decided.work, share

    def finish(self, options: Options, progress: Progress, *, details: bool) -> Quantized:
        """Quantize and describe."""
        return finish(self._model, self.seen, options, progress, details=details)

    def climb(self, options: Options, search: Search) -> None:
        """Try one thing after the other."""
        if search.is_end(search.attempt("as asked", options)):
            return
        for what, change in _cheap_changes(options):
            trial = search.attempt(what, dataclasses.replace(options, **change))  # type: ignore[arg-type]
            if search.is_end(trial):
                return
        options = search.best().options
        decided = decide(self.seen, options)
        self._nodes = {str(node.name) for node in decided.plan.nodes}
        self.damage = measure_damage(
            decided.work, decided.plan, decided.constants, self._samples, self._progress
        )
        if not scheme_named(options.scheme).power_of_two:
            options, ended = self._with_own_ranges(options, search)
            if ended:
                return
        self._raise(options, search)

    def _with_own_ranges(self, options: Options, search: Search) -> tuple[Options, bool]:
        """Try the range that does least at the outputs for each activation; keep what helps."""
        ranges, damage = own_ranges(self.seen, options, self.damage, self._samples, self._progress)
        if not ranges:
            return options, False
        own = dataclasses.replace(options, ranges={**ranges, **options.ranges})
        trial = search.attempt(f"own ranges for {len(ranges)} activations", own)
        if search.best() is not trial:
            return options, search.is_end(trial)
        self.damage = damage
        return own, search.is_end(trial)

    def _raise(self, options: Options, search: Search) -> None:
        """Raise precision step by step, each leaving about half of the noise before."""
        total = sum(row.noise for row in self.damage)
        if total <= 0.0:
            return
        aim = total / _STEP
        missing_db = search.missing_db()
        if missing_db is not None:
            # Straight to the noise that the promise leaves room for.
            aim = min(aim, total / 10.0 ** (missing_db / 10.0))
        missed = total  # the noise that was left where the promise was not kept
        for _ in range(_MOST_RUNGS):
            trial = self._try_widened(options, aim, search)
            if trial is not None and search.is_end(trial):
                break
            missed, aim = aim, aim / _STEP
        else:
            return
        # The step was too large where less would have done. Of a drop, which few samples show, a
        # second look at the same samples would find a lucky trial sooner than a cheaper one.
        for _ in range(_HALVINGS if missing_db is not None else 0):
            between = math.sqrt(missed * aim)
            trial = self._try_widened(options, between, search)
            enough = trial is not None and trial.met
            missed, aim = (missed, between) if enough else (between, aim)

    def _try_widened(self, options: Options, aim: float, search: Search) -> Tried | None:
        """Try what leaves no more than `aim`; None where that is nothing, or all in float."""
        wide_possible = not scheme_named(options.scheme).power_of_two
        wide, exclude = widened_for(self.damage, aim, wide_possible)
        if not (wide or exclude) or self._nodes.issubset(exclude):
            return None
        words = [f"{len(wide)} activations in 16 bits"] if wide else []
        narrow = self._raises_to == "bfloat" and aim > _BFLOAT_NOISE * len(exclude)
        where = "bfloat16" if narrow else "float"
        words += [f"{len(exclude)} nodes in {where}"] if exclude else []
        bfloat, left_out = (exclude, ()) if narrow else ((), exclude)
        raised = dataclasses.replace(
            options,
            wide=(*options.wide, *wide),
            exclude=(*options.exclude, *left_out),
            bfloat=(*options.bfloat, *bfloat),
        )
        trial: Tried = search.attempt(", ".join(words), raised)
        return trial


def _cheap_changes(options: Options) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield remedies that cost nothing at run time, alone and then together."""
    scheme = scheme_named(options.scheme)
    base: dict[str, object] = {}
    if options.rounding != "compensated":
        base["rounding"] = "compensated"
        yield "compensated rounding", dict(base)
    if scheme.power_of_two:
        return
    per_channel = scheme.per_channel if options.per_channel is None else options.per_channel
    if not per_channel:
        base["per_channel"] = True
        yield "a scale for each channel", dict(base)
    for method in ("mse", "percentile", "minmax"):
        if (options.method or own_method(scheme)) != method:
            yield f"ranges by {method}", {**base, "method": method}


def other_ladder(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    held: HeldOut,
    options: Options,
    progress: Progress,
) -> Ladder:
    """Run the samples through the float model, for any options of another scheme."""
    looked = dataclasses.replace(options, rounding="compensated")
    return _Others(model, look_other(model, samples, looked, progress, held=held), progress)


class _Others:
    """Schemes without scales for activations: fewer nodes in them is what can be tried."""

    damage: Sequence[Damage] = ()

    def __init__(self, model: ir.Model, seen: SeenOther, progress: Progress) -> None:
        self._model, self._seen, self._progress = model, seen, progress

    def make(self, options: Options) -> tuple[ir.Model, float]:
        return make_other(self._seen, options)

    def finish(self, options: Options, progress: Progress, *, details: bool) -> Quantized:
        return finish_other(self._model, self._seen, options)

    def climb(self, options: Options, search: Search) -> None:
        if search.is_end(search.attempt("as asked", options)):
            return
        for what, change in self._cheap_changes(options):
            trial = search.attempt(what, dataclasses.replace(options, **change))  # type: ignore[arg-type]
            if search.is_end(trial):
                return
        options = search.best().options
        ranked = self._worst_first(options)
        count, kept = 1, 0
        while count < len(ranked):
            if self._is_enough(options, ranked[:count], search):
                break
            kept, count = count, 2 * count
        else:
            return
        while count - kept > 1 and search.missing_db() is not None:
            middle = (kept + count) // 2
            enough = self._is_enough(options, ranked[:middle], search)
            kept, count = (kept, middle) if enough else (middle, count)

    def _is_enough(self, options: Options, names: Sequence[str], search: Search) -> bool:
        left_out = dataclasses.replace(options, exclude=(*options.exclude, *names))
        nodes = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        return search.is_end(search.attempt(f"{nodes} in float", left_out))

    def _cheap_changes(self, options: Options) -> Iterator[tuple[str, dict[str, object]]]:
        scheme = self._seen.scheme
        base: dict[str, object] = {}
        if options.rounding != "compensated" and not isinstance(scheme, FloatScheme):
            base["rounding"] = "compensated"
            yield "compensated rounding", dict(base)
        if isinstance(scheme, DynamicScheme) and options.per_channel is False:
            yield "a scale for each channel", {**base, "per_channel": True}
        if isinstance(scheme, WeightScheme):
            for block in sorted((b for b in BLOCKS if b < options.block), reverse=True):
                yield f"blocks of {block}", {**base, "block": block}

    def _worst_first(self, options: Options) -> list[str]:
        """Return the names of rounded nodes, those that add most noise first."""
        made, _ = self.make(options)
        return self._seen.worst_first(made, options)
