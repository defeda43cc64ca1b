"""Einsum of one or two tensors as the products, sums and transposes that it stands for.

With the labels of two tensors sorted into those of both and of the result (b), of both and summed
over (k), and of one alone (r, c), it is a matrix product of (b…, r, k) and (b…, k, c). A constant
is its right side, and is sorted at once: what multiplies with weights then finds a matrix.
Source: ONNX Einsum-12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.attributes import text
from vermilion.ir.opset import is_operator, where
from vermilion.ir.passes.contrib_writer import Left, Writer, array_of, required
from vermilion.ir.passes.rewrite import Notes

Sizes = Mapping[str, int | None]


def write_einsum(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Einsum<"bthd,hdn->btn"> (x, y)` → `MatMul (Reshape (x), Reshape (y))`."""
    for node in list(model.graph.all_nodes()):
        if not is_operator(node, "Einsum"):
            continue
        writer = Writer(model, node)
        try:
            made = _written(writer, node)
        except Left as why:
            notes.refuse(where(node), str(why))
            continue
        writer.put([made])
        notes.fired += 1


@dataclass(frozen=True)
class _Term:
    """A tensor and the labels of its axes.

    `array` is there where a constant was sorted anew; `value` is then what it was before.
    """

    value: ir.Value
    labels: str
    array: Array | None = None

    def constant(self) -> Array | None:
        """Return the numbers, None for what is computed."""
        return array_of(self.value) if self.array is None else self.array

    def made(self, w: Writer) -> ir.Value:
        """Return the tensor."""
        return self.value if self.array is None else w.constant(np.ascontiguousarray(self.array))


def _written(w: Writer, node: ir.Node) -> ir.Value:
    terms, result = _parsed(text(node, "equation", ""), len(node.inputs))
    sizes: dict[str, int | None] = {}
    for at, labels in enumerate(terms):
        shape = required(node, at).shape
        if shape is None or len(shape) != len(labels):
            raise Left("Einsum of a tensor whose axes are not known")
        for label, size in zip(labels, shape, strict=True):
            known = size if isinstance(size, int) else None
            before = sizes.get(label)
            if before is not None and known is not None and before != known:
                raise Left("Einsum that repeats an axis of size 1")
            sizes[label] = known if before is None else before
    operands = [
        _summed(w, _Term(required(node, at), labels), [*terms[:at], *terms[at + 1 :], result])
        for at, labels in enumerate(terms)
    ]
    if len(operands) == 1:
        return _turned(w, operands[0], result).made(w)
    left, right = operands
    if left.constant() is not None and right.constant() is None:
        left, right = right, left
    shared = [label for label in left.labels if label in right.labels]
    kept = "".join(label for label in result if label in shared)
    over = "".join(label for label in shared if label not in result)
    rows = "".join(label for label in left.labels if label not in shared)
    columns = "".join(label for label in right.labels if label not in shared)
    if not over:
        return w("Mul", _spread(w, left, result).made(w), _spread(w, right, result).made(w))
    a = _turned(w, left, kept + rows + over)
    b = _turned(w, right, kept + over + columns)
    if kept:
        a = _joined(w, a, kept, [rows, over], sizes)
        b = _joined(w, b, kept, [over, columns], sizes)
    else:  # a matrix on the right: MatMul takes any number of rows' axes
        a = _joined(w, a, rows, [over], sizes)
        b = _joined(w, b, "", [over, columns] if columns else [over], sizes)
    product = _Term(w("MatMul", a.made(w), b.made(w)), kept + rows + columns)
    if kept and (len(rows) != 1 or len(columns) != 1):
        product = _shaped(w, product, kept, [*rows, *columns], sizes)
    elif len(columns) > 1:
        product = _shaped(w, product, rows, [*columns], sizes)
    return _turned(w, product, result).made(w)


def _parsed(equation: str, count: int) -> tuple[list[str], str]:
    """Return the labels of every input, and of the result."""
    words = equation.replace(" ", "")
    if "." in words:
        raise Left("Einsum with axes that have no label")
    given, arrow, result = words.partition("->")
    terms = given.split(",")
    if len(terms) != count or count > 2:
        raise Left(f"Einsum of {count} tensors")
    if not arrow:  # labels that stand once, in the order of the alphabet
        result = "".join(sorted(c for c in set(given) - {","} if given.count(c) == 1))
    if any(len(set(term)) != len(term) for term in (*terms, result)):
        raise Left("Einsum along a diagonal")
    return terms, result


def _summed(w: Writer, term: _Term, others: Sequence[str]) -> _Term:
    """Sum over labels that stand nowhere else."""
    alone = [at for at, label in enumerate(term.labels) if label not in "".join(others)]
    if not alone:
        return term
    if w.opset >= 13:
        value = w("ReduceSum", term.value, w.integers(*alone), keepdims=0)
    else:
        value = w("ReduceSum", term.value, axes=alone, keepdims=0)
    return _Term(value, "".join(c for at, c in enumerate(term.labels) if at not in alone))


def _turned(w: Writer, term: _Term, wanted: str) -> _Term:
    if term.labels == wanted:
        return term
    order = [term.labels.index(label) for label in wanted]
    array = term.constant()
    if array is not None:
        return replace(term, labels=wanted, array=array.transpose(order))
    return _Term(w("Transpose", term.value, perm=order), wanted)


def _spread(w: Writer, term: _Term, result: str) -> _Term:
    """Return a tensor with the axes of the result, of size 1 where it has none of its own."""
    term = _turned(w, term, "".join(label for label in result if label in term.labels))
    first = result.index(term.labels[0]) if term.labels else len(result)
    missing = [at - first for at in range(first, len(result)) if result[at] not in term.labels]
    array = term.constant()
    if not missing:
        return term
    if array is not None:
        return replace(term, array=np.expand_dims(array, missing))
    return _Term(w.unsqueezed(term.value, *missing), result[first:])


def _joined(w: Writer, term: _Term, kept: str, groups: Sequence[str], sizes: Sizes) -> _Term:
    """Return a tensor of the kept axes and one for each group of labels."""
    if all(len(group) == 1 for group in groups):
        return term
    return _shaped(w, term, kept, groups, sizes)


def _shaped(w: Writer, term: _Term, kept: str, groups: Sequence[str], sizes: Sizes) -> _Term:
    """Reshape: the kept axes stay, each group of labels is an axis; one may have an open size."""
    wanted: list[int] = []
    for group in groups:
        known = [sizes[label] for label in group]
        numbers = [size for size in known if size is not None]
        wanted.append(math.prod(numbers) if len(numbers) == len(known) else -1)
    if wanted.count(-1) > 1 or 0 in wanted:
        raise Left("Einsum that joins axes of more than one open size")
    array = term.constant()
    if array is not None:
        return replace(term, array=array.reshape(*array.shape[: len(kept)], *wanted))
    return _Term(w.reshaped(term.value, *[0] * len(kept), *wanted), term.labels)
