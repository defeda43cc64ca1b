"""How often the bound on a mean loss covers the truth, and how wide it is.

    python bench/bound_bench.py [--samples 11,32,100,316,1000] [--draws 1000] [--seed 0]

Twelve distributions of what a sample loses, whose mean is known: yes or no, letters of a line,
pixels of a mask that fail together once in a while, heavy tails, decisions that fail in clusters,
gains beside losses. Each draw is a set of samples that was held out; a bound of 95 % may lie below
the true mean in one draw of twenty. Beside it stands what the same samples would need if their
distribution were known (`exact`: the 95 % quantile of the mean of so many losses, mirrored at the
truth), and Student's bound, which knows nothing of losses that were not seen.

Exits 1 where the bound covers less than 94 % of the draws.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LEAST = 0.94
_TRUTH_DRAWS = 4_000_000
_STUDENT = {11: 1.812, 32: 1.696, 100: 1.660, 316: 1.650, 1000: 1.646}

Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Loss:
    """What a sample loses; the mean is counted over millions where it is None."""

    name: str
    draw: Draw
    mean: float | None


def _clipped(draw: Draw) -> Draw:
    return lambda g, n: np.minimum(draw(g, n), 1.0)


def _either(rate: float, rare: Draw, often: Draw) -> Draw:
    return lambda g, n: np.where(g.random(n) < rate, rare(g, n), often(g, n))


def _always(value: float) -> Draw:
    return lambda g, n: np.full(n, value)


LOSSES = (
    Loss("yes or no, 1 in 100", _either(0.01, _always(1.0), _always(0.0)), 0.01),
    Loss("yes or no, 1 in 10", _either(0.1, _always(1.0), _always(0.0)), 0.1),
    Loss("letters, 1 in 50, 40 a line", lambda g, n: g.binomial(40, 0.02, n) / 40, 0.02),
    Loss(
        "letters, 1 line in 20 lost",
        _either(0.05, _always(1.0), lambda g, n: g.binomial(40, 0.005, n) / 40),
        0.05 + 0.95 * 0.005,
    ),
    Loss("pixels, 1 mask in 20 lost", _either(0.05, _always(1.0), _always(0.0)), 0.05),
    Loss(
        "pixels, 1 mask in 100 lost",
        _either(0.01, _always(1.0), lambda g, n: g.beta(2.0, 198.0, n)),
        0.01 + 0.99 * 0.01,
    ),
    Loss("pixels, a third of 1 mask in 20", _either(0.05, _always(0.3), _always(0.0)), 0.015),
    Loss("heavy tail, Pareto 1.1", _clipped(lambda g, n: 0.002 * (1.0 + g.pareto(1.1, n))), None),
    Loss("heavy tail, log-normal 2", _clipped(lambda g, n: 0.01 * g.lognormal(0.0, 2.0, n)), None),
    Loss(
        "clusters: half of 1 scene in 10",
        _either(0.1, lambda g, n: g.binomial(200, g.beta(5, 5, n)) / 200, _always(0.0)),
        0.05,
    ),
    Loss(
        "labels: 3 in 100 lost, 2 gained",
        lambda g, n: g.choice([1.0, -1.0, 0.0], n, p=[0.03, 0.02, 0.95]),
        0.01,
    ),
    Loss("nearly all lost", lambda g, n: g.beta(8.0, 2.0, n), 0.8),
)


def main() -> None:
    """Count for every distribution and number of samples."""
    from vermilion.quantize.evidence import upper_bound

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", default="11,32,100,316,1000")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    worst = 1.0
    print(f"{'loss':34} held out   truth  covered   bound   exact  Student")
    for loss in LOSSES:
        g = np.random.default_rng(options.seed)
        truth = loss.mean
        if truth is None:
            truth = float(loss.draw(g, _TRUTH_DRAWS).mean())
        for count in map(int, options.samples.split(",")):
            draws = [loss.draw(g, count) for _ in range(options.draws)]
            bounds = np.asarray([upper_bound(draw.tolist()) for draw in draws])
            means = np.asarray([draw.mean() for draw in draws])
            spread = np.asarray([draw.std(ddof=1) for draw in draws])
            student = means + _STUDENT.get(count, 1.645) * spread / math.sqrt(count)
            exact = 2.0 * truth - float(np.quantile(means, 0.05))
            covered = float(np.mean(bounds >= truth))
            worst = min(worst, covered)
            print(
                f"{loss.name:34}{count:9}{truth:8.4f}{covered:9.1%}{bounds.mean():8.4f}"
                f"{exact:8.4f}{np.mean(student >= truth):9.1%}",
                flush=True,
            )
    print(f"covered at least {worst:.1%}")
    sys.exit(0 if worst >= LEAST else 1)


if __name__ == "__main__":
    main()
