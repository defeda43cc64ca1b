"""Einsum of one or two tensors as the products, sums and transposes that it stands for.

With the labels of two tensors sorted into those of both and of the result (b), of both and summed
over (k), and of one alone (r, c), it is a matrix product of (b…, r, k) and (b…, k, c).
Source: ONNX Einsum-12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.ir.attributes import text
from vermilion.ir.opset import is_operator, where
from vermilion.ir.passes.contrib_writer import Left, Writer, required
from vermilion.ir.passes.rewrite import Notes

Sizes = Mapping[str, int | None]


def write_einsum(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Einsum<"bthd,hdn->btn"> (x, w)` → `MatMul (Reshape (x), Reshape (w))`."""
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
    """A tensor and the labels of its axes."""

    value: ir.Value
    labels: str


def _written(w: Writer, node: ir.Node) -> ir.Value:
    terms, result = _parsed(text(node, "equation", ""), len(node.inputs))
    sizes: dict[str, int | None] = {}
    for at, labels in enumerate(terms):
        shape = required(node, at).shape
        if shape is None or len(shape) != len(labels):
            raise Left("Einsum of a tensor whose axes are not known")
        for label, size in zip(labels, shape, strict=True):
            if sizes.get(label) is None:
                sizes[label] = size if isinstance(size, int) else None
    operands = [
        _summed(w, _Term(required(node, at), labels), [*terms[:at], *terms[at + 1 :], result])
        for at, labels in enumerate(terms)
    ]
    if len(operands) == 1:
        return _turned(w, operands[0], result)
    left, right = operands
    shared = [label for label in left.labels if label in right.labels]
    kept = "".join(label for label in result if label in shared)
    over = "".join(label for label in shared if label not in result)
    rows = "".join(label for label in left.labels if label not in shared)
    columns = "".join(label for label in right.labels if label not in shared)
    a = _turned(w, left, kept + rows + over)
    b = _turned(w, right, kept + over + columns)
    if not over:
        inner, outer = len(kept), len(kept + rows)
        a = w.unsqueezed(a, *range(outer, outer + len(columns))) if columns else a
        b = w.unsqueezed(b, *range(inner, outer)) if rows else b
        return _turned(w, _Term(w("Mul", a, b), kept + rows + columns), result)
    product = w(
        "MatMul", _merged(w, a, kept, rows, over, sizes), _merged(w, b, kept, over, columns, sizes)
    )
    if len(rows) != 1 or len(columns) != 1:
        product = _shaped(w, product, kept, [*rows, *columns], sizes)
    return _turned(w, _Term(product, kept + rows + columns), result)


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


def _turned(w: Writer, term: _Term, wanted: str) -> ir.Value:
    if term.labels == wanted:
        return term.value
    return w("Transpose", term.value, perm=[term.labels.index(label) for label in wanted])


def _merged(
    w: Writer, value: ir.Value, kept: str, first: str, second: str, sizes: Sizes
) -> ir.Value:
    """Return (kept…, first…, second…) as matrices."""
    if len(first) == 1 and len(second) == 1:
        return value
    return _shaped(w, value, kept, [first, second], sizes)


def _shaped(w: Writer, value: ir.Value, kept: str, groups: Sequence[str], sizes: Sizes) -> ir.Value:
    """Reshape: the kept axes stay, each group of labels is an axis; one may have an open size."""
    wanted: list[int] = []
    for group in groups:
        known = [sizes[label] for label in group]
        numbers = [size for size in known if size is not None]
        wanted.append(math.prod(numbers) if len(numbers) == len(known) else -1)
    if wanted.count(-1) > 1 or 0 in wanted:
        raise Left("Einsum that joins axes of more than one open size")
    return w.reshaped(value, *[0] * len(kept), *wanted)
