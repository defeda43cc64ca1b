"""A range for each activation by what it does at the outputs, not at the tensor itself.

Cutting off what is rare is best for the squared error of a tensor. What the rest of the network
makes of the few large values is another matter: for some tensors they are what decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vermilion.ir.execute import Array
from vermilion.progress import Progress
from vermilion.quantize.look import Seen
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import decide
from vermilion.quantize.ranges import Method
from vermilion.quantize.sensitivity import NOTICED, Damage, measure_damage

_CANDIDATES: tuple[Method, ...] = ("mse", "minmax", "percentile")

# A range that is not clearly better on the few samples may be worse on others.
_CLEARLY_LESS = 0.9


def own_ranges(
    seen: Seen,
    options: Options,
    damage: Sequence[Damage],
    samples: Sequence[Mapping[str, Array]],
    progress: Progress,
) -> tuple[dict[str, Method], list[Damage]]:
    """Return another method for each tensor that does less damage with it, and the damage then.

    `damage` is that of `options`, measured on the same `samples`.
    """
    noticed = NOTICED * sum(row.noise for row in damage)
    usual = {r.names: r for r in damage if r.kind == "activation" and r.noise > noticed}
    best = dict(usual)
    methods: dict[str, Method] = {}
    # Only activations are looked at, so that it does not matter how weights are rounded.
    plain = dataclasses.replace(options, rounding="nearest")
    before = decide(seen, plain).constants.parameters
    for method in _CANDIDATES:
        decided = decide(seen, dataclasses.replace(plain, method=method))
        now = decided.constants.parameters
        changed = {names for names in usual if any(now[n] != before[n] for n in names)}
        if not changed:
            continue
        for row in measure_damage(
            decided.work, decided.plan, decided.constants, samples, progress, only=changed
        ):
            limit = min(best[row.names].noise, _CLEARLY_LESS * usual[row.names].noise)
            if row.noise < limit:
                best[row.names] = row
                methods |= dict.fromkeys(row.names, method)
    after = [best.get(row.names, row) for row in damage]
    return methods, sorted(after, key=lambda row: -row.noise)
