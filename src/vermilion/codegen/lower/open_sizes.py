"""A model with open dimensions, made ready to be lowered once for all sizes.

Every open dimension of an input is a symbol. What nodes give follows from their inputs by the same
rules as fixed shapes do, and whole numbers that follow from sizes alone (Shape, Gather, Concat in
front of a Reshape) are computed here, as formulas, and never when the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from vermilion.codegen.lower.result_shapes import result_shapes
from vermilion.codegen.lower.rules import has_rule
from vermilion.codegen.lower.size_numbers import MOST_NUMBERS, numbers_of
from vermilion.codegen.lower.window_shapes import UnknownShape
from vermilion.ir.formula import Formula, Symbol, guard_holds
from vermilion.ir.opset import required_inputs, static_shape
from vermilion.ir.samples.open_sizes import open_name
from vermilion.ir.symbolic import (
    Examples,
    Guard,
    examples,
    is_known,
    shape_of_sizes,
    symbol,
)

# Example sizes: of a first dimension, which mostly counts a batch, of a second, mostly the length
# of a text, which tables of positions must reach, and of the others, mostly the sides of pictures,
# which are halved again and again. The first set is of primes, so that what divides them by
# accident does not look as if it always did; the second set must give the same program.
_EXAMPLES = ((7, 29, 131), (12, 34, 210))
# Of sound, which a stack of convolutions makes some hundred times shorter.
_TYPICAL_LENGTH = 40_000
_LONG_EXAMPLES = ((7, 40009, 40013), (12, 48010, 48020))
# Tiles that pictures may have to be made of, with examples of how many there are: networks that
# halve a side five times and join what they had before are right for multiples of 32 alone.
_TILES = {2: (113, 170), 4: (53, 90), 8: (29, 42), 16: (13, 22), 32: (7, 10)}
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class OpenModel:
    """A copy of a model, its open sizes by example, and where a run reads each symbol.

    `from_sizes` are the nodes of the copy that need not run, `unknown` those of unknown results.
    `symbols` says of each symbol the number of the input, the axis, and what its size is divided
    by. `unfollowed` are nodes of which no rule here says the result's shape, though the graph may;
    `unequal` are the differences of sizes for whose sake: at the examples they are not 0.
    """

    model: ir.Model
    sizes: Examples
    from_sizes: frozenset[ir.Node]
    symbols: Mapping[str, tuple[int, int, int]]
    examples: Mapping[str, int]
    unknown: frozenset[ir.Node]
    unfollowed: frozenset[ir.Node]
    unequal: Sequence[Formula]

    @property
    def unfit(self) -> frozenset[ir.Node]:
        """Nodes whose results are not known, or too small to tell a size from 1."""
        with examples(self.sizes):
            small = {
                node
                for node in self.model.graph
                for value in node.outputs
                if any(not is_known(n) and int(n) < 2 for n in static_shape(value) or ())
            }
        return self.unknown | small

    def contradicts(self, guards: Iterable[Guard]) -> bool:
        """Say whether something that another lowering took for granted does not hold here."""
        return not all(
            guard_holds(guard.sign, guard.difference.at(self.examples)) for guard in guards
        )


def open_models(model: ir.Model) -> Iterator[OpenModel]:
    """Yield the model by each set of examples.

    The sides of pictures are multiples of a tile, the smallest one that will do, or sound is long,
    where more nodes can be generated so.
    """
    ways = [(_EXAMPLES, 1)]
    opened = _opened(model.clone(), _EXAMPLES[0], 1)
    if opened.unfit:
        if any(axis > 1 for _, axis, _ in opened.symbols.values()):
            ways += [(_EXAMPLES, tile) for tile in _TILES]
        ways.append((_LONG_EXAMPLES, 1))
    (first, second), multiple = min(
        ways, key=lambda way: len(_opened(model.clone(), way[0][0], way[1]).unfit)
    )
    yield _opened(model.clone(), first, multiple)
    yield _opened(model.clone(), second, multiple)


def joined_models(model: ir.Model) -> Iterator[OpenModel]:
    """Yield the model by two sets of examples in which sizes that a node combines are equal.

    A mask as long as a cache and a step together has a symbol of its own; its example is made the
    sum of theirs, and that the two are equal becomes a guard.
    """
    for sizes_by_axis in _EXAMPLES:
        equal: dict[str, int] = {}
        opened = _opened(model.clone(), sizes_by_axis, 1)
        while opened.unequal:
            found = _solved(opened, equal)
            if found is None:
                break
            equal.update([found])
            opened = _opened(model.clone(), sizes_by_axis, 1, equal=equal)
        yield opened


def _solved(opened: OpenModel, equal: Mapping[str, int]) -> tuple[str, int] | None:
    """Return a symbol and the example at which a difference of sizes is 0; None where none is.

    The symbol is one that stands alone in the difference.
    """
    order = list(opened.symbols)
    for difference in opened.unequal:
        alone = {
            atoms[0].name: factor
            for factor, atoms in difference.terms
            if len(atoms) == 1 and isinstance(atoms[0], Symbol)
        }
        names = [name for name in alone if name not in equal and name in opened.examples]
        for name in sorted(names, key=order.index, reverse=True):
            example = opened.examples[name] - difference.at(opened.examples) // alone[name]
            if example > 0 and difference.at({**opened.examples, name: example}) == 0:
                return name, example
    return None


def at_batch(model: ir.Model, batch: int) -> OpenModel:
    """Return a model whose one open dimension is a batch, for that batch: all sizes are known."""
    return _opened(model.clone(), (batch,) * 3, 1, is_example=False)


def is_open(model: ir.Model) -> bool:
    """Say whether an input has a dimension that is open."""
    return any(static_shape(value) is None for value in required_inputs(model))


def _opened(
    model: ir.Model,
    sizes_by_axis: Sequence[int],
    multiple: int,
    *,
    is_example: bool = True,
    equal: Mapping[str, int] = MappingProxyType({}),
) -> OpenModel:
    current, symbols = Examples({}, {}), dict[str, tuple[int, int, int]]()
    # By the model's own name, which may be what a formula is written like.
    named: dict[str, int] = {}
    chosen: dict[str, int] = {}
    counters = [0, 0, 0]
    with examples(current):
        for number, value in enumerate(required_inputs(model)):
            if value.shape is None:
                continue
            sizes: list[int] = []
            for axis, dimension in enumerate(value.shape.dims):
                if isinstance(dimension, int):
                    sizes.append(dimension)
                    continue
                text = open_name(value, axis)
                if text not in named:
                    kind = min(axis, 2)
                    times = multiple if kind == 2 else 1
                    name = text if _NAME.fullmatch(text) else f"size.{len(symbols)}"
                    # Every symbol has an example of its own.
                    example = sizes_by_axis[kind]
                    if times > 1:
                        example = _TILES[times][sizes_by_axis == _EXAMPLES[1]]
                    example += 2 * counters[kind] * (3 + kind) if is_example else 0
                    counters[kind] += 1
                    name = f"{name}/{times}" if times > 1 else name
                    example = equal.get(name, example)
                    size = symbol(name, example) if is_example else example
                    named[text] = times * size
                    symbols[name], chosen[name] = (number, axis, times), example
                sizes.append(named[text])
            value.shape = shape_of_sizes(sizes)
        if any(axis for _, axis, _ in symbols.values()):
            batches = {name: 2 for name, (_, axis, _) in symbols.items() if axis == 0}
            current.typical.update(batches)
        if sizes_by_axis in _LONG_EXAMPLES:
            long = [name for name, (_, axis, _) in symbols.items() if axis]
            current.typical.update(dict.fromkeys(long, _TYPICAL_LENGTH))
        unequal: list[Formula] = []
        unfollowed: list[ir.Node] = []
        done = frozenset(
            node for node in model.graph if _follow(node, current, unfollowed, unequal)
        )
        unknown = frozenset(
            node
            for node in model.graph
            if node not in done and any(static_shape(v) is None for v in node.outputs if v.name)
        )
    return OpenModel(model, current, done, symbols, chosen, unknown, frozenset(unfollowed), unequal)


def _follow(
    node: ir.Node, current: Examples, unfollowed: list[ir.Node], unequal: list[Formula]
) -> bool:
    """Compute shapes, and numbers if they follow from sizes; say whether that is all of it.

    A node whose result is not known goes to `unfollowed`, and to `unequal` the differences of the
    sizes that were compared and not equal.
    """
    known = numbers_of(node)
    if known is not None and known.size <= MOST_NUMBERS:
        value = node.outputs[0]
        current.values[str(value.name)] = known
        value.shape = ir.Shape(known.shape)
        return True
    if not has_rule(node):
        unfollowed.append(node)
        return False
    before = set(current.guards)
    try:
        shapes = result_shapes(node)
    except (UnknownShape, IndexError, ValueError, TypeError, KeyError):
        unfollowed.append(node)
        # Nothing follows from what was compared for a result that there is not.
        noted = [current.guards.pop(key) for key in [*current.guards] if key not in before]
        unequal += [guard.difference for guard in noted if guard.sign is None]
        return False  # damaged, or of a form that no rule reads: the claim says why
    for value, shape in zip(node.outputs, shapes, strict=False):
        if value.name:
            value.shape = shape_of_sizes(shape)
    return False
