"""What the NPU's shifters can do, and how scales move to stay within it.

Between integers of different scales the NPU shifts, by amounts that have limits. With p for the
position of a scale (2^-p), and r, w, b, o for what is read, weight, bias and what is written:

    Add, Sub       the positions read differ by at most 7
    Add            -7 <= min(r) - o <= 25
    Mul             0 <= sum(r) - o <= 32
    Conv, Gemm      0 <= w + r - o  <= 16   ("cut")
                  low <= w + r - b  <= 15   low = min(0, cut - 16), 0 before a LeakyRelu

Source: AMD Quark for ONNX, refinement of fix-point positions for the NPU.

Positions here only ever become smaller: scales coarser, nothing clipped. Where the vendor's tool
raises the position of a bias, a weight or an output, which cuts off what no longer fits, the
other side of the limit is lowered instead: it loses digits that lie below the resolution of what
it is added to. Data is rounded after the last move, so stored integers and scales agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vermilion.quantize.choose import LARGEST_POSITION
from vermilion.quantize.plan import Step

# The vendor's tool makes 5. A move can travel up the graph by one node a round: Inception v1 needs
# more than 5 and less than 10. Limits that chase each other in a circle stop here and are reported.
_ROUNDS = 20

_READ_SPREAD = 7
_ADD_LOW, _ADD_HIGH = -7, 25
_MUL_LOW, _MUL_HIGH = 0, 32
_CUT_LOW, _CUT_HIGH = 0, 16
_BIAS_HIGH = 15
_ACCUMULATOR_BITS = 16  # 24 less the 8 of an operand

# The position of a tensor that is zero throughout and has no neighbour to agree with.
_ZERO_POSITION = 7


@dataclass(frozen=True)
class Refined:
    """Positions of all scales; `moved` says how many changed, `unmet` which limits do not hold."""

    positions: Mapping[str, int]
    moved: int
    unmet: tuple[str, ...]


class _Positions:
    """Positions while they move."""

    def __init__(self, start: Mapping[str, int]) -> None:
        self.now = dict(start)
        self.changed = False

    def lower(self, name: str, limit: int) -> None:
        """Bring the position of `name` down to `limit`, unless it is there already."""
        limit = max(limit, -LARGEST_POSITION)
        if self.now[name] > limit:
            self.now[name] = limit
            self.changed = True


def refine(steps: Sequence[Step], start: Mapping[str, int]) -> Refined:
    """Move the positions in `start` until the NPU's limits hold.

    A scale without a position in `start` has seen only zeros: it binds nothing, and is given a
    position that suits its neighbours at the end.
    """
    positions = _Positions(start)
    for _ in range(_ROUNDS):
        positions.changed = False
        for step in steps:
            _settle(step, positions)
        if not positions.changed:
            break
    final = dict(positions.now)
    for step in steps:
        _place_zeros(step, final)
    moved = sum(final[name] != start[name] for name in start)
    return Refined(final, moved, _unmet(steps, positions))


def _settle(step: Step, positions: _Positions) -> None:
    rule = _RULES.get(step.op_type)
    known = positions.now
    if rule is None or not all(name in known for name in step.reads):
        return
    rule(step, positions)


def _settle_add(step: Step, positions: _Positions) -> None:
    for name in step.reads:
        positions.lower(name, min(positions.now[n] for n in step.reads) + _READ_SPREAD)
    if step.op_type != "Add" or step.writes not in positions.now:
        return
    smallest = min(step.reads, key=lambda name: positions.now[name])
    positions.lower(step.writes, positions.now[smallest] - _ADD_LOW)
    positions.lower(smallest, positions.now[step.writes] + _ADD_HIGH)


def _settle_mul(step: Step, positions: _Positions) -> None:
    if step.writes not in positions.now:
        return
    total = sum(positions.now[name] for name in step.reads)
    positions.lower(step.writes, total - _MUL_LOW)
    excess = total - positions.now[step.writes] - _MUL_HIGH
    if excess > 0:
        finest = max(step.reads, key=lambda name: positions.now[name])
        times = step.reads.count(finest)
        positions.lower(finest, positions.now[finest] - -(-excess // times))


def _settle_product(step: Step, positions: _Positions) -> None:
    if len(step.reads) != 2:
        return
    read, weight = step.reads
    now = positions.now
    if step.writes in now:
        positions.lower(weight, _CUT_HIGH + now[step.writes] - now[read])
        positions.lower(step.writes, now[weight] + now[read] - _CUT_LOW)
    if step.bias in now:
        positions.lower(weight, _BIAS_HIGH + now[step.bias] - now[read])
        positions.lower(step.bias, now[weight] + now[read] - _bias_low(step, now))


def _bias_low(step: Step, now: Mapping[str, int]) -> int:
    if step.activation == "LeakyRelu" or step.writes is None or step.writes not in now:
        return 0
    cut = now[step.reads[0]] + now[step.reads[1]] - now[step.writes]
    return min(0, cut - _ACCUMULATOR_BITS)


_RULES: Mapping[str, Callable[[Step, _Positions], None]] = {
    "Add": _settle_add,
    "Sub": _settle_add,
    "Mul": _settle_mul,
    "Conv": _settle_product,
    "Gemm": _settle_product,
}


def _place_zeros(step: Step, final: dict[str, int]) -> None:
    """Return tensors of zeros a position at which no limit is touched."""
    known = [final[name] for name in step.reads if name in final]
    near = min(known) if known else final.get(str(step.writes), _ZERO_POSITION)
    for name in (*step.reads, step.writes):
        if name is not None:
            final.setdefault(name, near)
    if step.bias is not None and step.bias not in final:
        final[step.bias] = max(-LARGEST_POSITION, min(LARGEST_POSITION, sum(known)))


def _unmet(steps: Sequence[Step], positions: _Positions) -> tuple[str, ...]:
    """Name the nodes whose limits would still move something."""
    found: list[str] = []
    for step in steps:
        trial = _Positions(positions.now)
        _settle(step, trial)
        if trial.changed:
            found.append(step.node_name)
    return tuple(found)
