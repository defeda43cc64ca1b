"""Faults in what picks, puts, sorts and resizes by numbers of the run, for `mutate_proof.py`."""
# ruff: noqa: E501 - a row is a line of the compiler, and that line changed

from __future__ import annotations

import numpy as np
from proof_fault import EMIT, LOWER, Fault, in_file
from proof_text import Text, floats, whole

_BOTH = ("fp32", "dynamic-fp32")
_DYNAMIC = ("dynamic-fp32", "dynamic-bf16")

MODELS = {
    "top": Text(
        "float[3,70] x", "float[3,5] a, int64[3,5] b, float[3,40] c, int64[3,40] d",
        "r = Neg (x) a, b = TopK <axis = 1> (r, few)"
        "c, d = TopK <axis = 1, largest = 0> (r, many)",
        {}, {"few": whole(5), "many": whole(40)},
    ),
    "top_column": Text(
        "float[30,7] x", "float[4,7] a, int64[4,7] b, float[26,7] c, int64[26,7] d",
        "r = Neg (x) a, b = TopK <axis = 0> (r, few) c, d = TopK <axis = 0> (r, many)",
        {}, {"few": whole(4), "many": whole(26)},
    ),
    "top_ties": Text(
        "float[3,70] x", "float[3,40] c, int64[3,40] d",
        "r = Round (x) c, d = TopK <axis = 1> (r, many)", {}, {"many": whole(40)},
    ),
    "indexed": Text(
        "float[5,6,7] x, float[3,7] v, float[4,2,7] u",
        "float[5,6,7] a, float[5,6,7] b, float[5,6,7] c, float[3,7] d, float[5,7] e",
        "r = Neg (x) a = ScatterND (r, pairs, v)"
        'b = ScatterND <reduction = "add"> (r, again, v)'
        "c = ScatterElements <axis = 1> (r, places, u) d = GatherND (r, pairs)"
        "e = GatherND <batch_dims = 1> (r, rows)",
        {}, {"pairs": np.array([[0, 1], [-1, 4], [2, -3]]), "again": np.array([[3, 2]] * 3),
             "places": np.array([[[at % 3] * 7, [-1 - at % 2] * 7] for at in range(4)]),
             "rows": np.array([[0], [5], [-2], [3], [1]])},
    ),
    "resize_open": Text(
        "float[1,20,5,7] x", "float[1,20,15,14] y, float[1,20,7,10] z, float[1,20,10,21] t",
        'r = Relu (x) y = Resize <mode = "linear"> (r, , s)'
        'z = Resize <mode = "nearest"> (r, , odd)'
        't = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (r, , u)',
        {}, {"s": floats(1, 1, 3, 2), "odd": floats(1, 1, 1.5, 1.5), "u": floats(1, 1, 2, 3)},
    ),
}  # fmt: skip

FAULTS: tuple[Fault, ...] = (
    *in_file(EMIT + "top.py", _BOTH, [
        ("operand", "an element must beat the best of the list", "top",
         "lowest = self.place(f, places, f.minimum(at, last))",
         "lowest = self.place(f, places, f.minimum(at, 0))"),
        ("tail", "the last element of a row is not looked at", "top",
         "with f.loop(0, self.size) as at:", "with f.loop(0, f.subtract(self.size, 1)) as at:"),
        ("offset", "an element goes one rank too low", "top",
         "f.branch(f.compare(\"sgt\", rank.get(), f.index(0)), compare, done)",
         "f.branch(f.compare(\"sgt\", rank.get(), f.index(1)), compare, done)"),
        ("stale", "the worst of the list stays the first that was", "top",
         "worst.set(self.element(arithmetic, come, lowest))", "pass"),
        ("tail", "the heap leaves out the last element of a row", "top",
         "with f.loop(count, self._spec.size) as at:",
         "with f.loop(count, f.subtract(self._spec.size, 1)) as at:"),
        ("operand", "the heap's second child is not looked at", "top",
         "child = f.select(is_second, second, first)", "child = first"),
        ("order", "of equal elements the later comes first", "top_ties",
         "is_later = f.compare(\"sgt\", one, other)", "is_later = f.compare(\"slt\", one, other)"),
        ("tail", "the heap is not taken apart to its end", "top",
         "with f.loop(1, count) as number:", "with f.loop(2, count) as number:"),
    ]),
    *in_file(LOWER + "scan.py", _BOTH, [
        ("operand", "the least for the greatest elements", "top",
         "\"max\" if integer(node, \"largest\", 1) else \"min\", source.storage", "\"max\", source.storage"),
        ("stride", "a column read as a row", "top_column",
         "*(view.strides[axis] for view in views),", "1, *(view.strides[axis] for view in views[1:]),"),
        ("axis", "sorted along the last dimension always", "top_column",
         "axis = integer(node, \"axis\", -1) % rank\n    others", "axis = rank - 1\n    others"),
    ]),
    *in_file(LOWER + "gather.py", _BOTH, [
        ("axis", "tuples pick from the dimensions before", "indexed",
         "axes = range(batch, batch + places.shape[-1])", "axes = range(0, places.shape[-1])"),
        ("stride", "a batch of tuples reads the first one's data", "indexed",
         "(source.strides[at] if at < batch else 0, places.strides[at], target.strides[at])",
         "(0, places.strides[at], target.strides[at])"),
        ("operand", "added where elements are to be replaced", "indexed",
         "text(node, \"reduction\", \"none\") == \"add\",", "True,"),
        ("operand", "replaced where elements are to be added", "indexed",
         "text(node, \"reduction\", \"none\") == \"add\",", "False,"),
        ("axis", "elements put along the first dimension always", "indexed",
         "axis = integer(node, \"axis\", 0) % rank\n    target", "axis = 0\n    target"),
        ("stride", "elements walk the result along the axis too", "indexed",
         "0 if at == axis else target.strides[at]))", "target.strides[at]))"),
    ]),
    *in_file(EMIT + "gather.py", _BOTH, [
        ("operand", "every number of a tuple is the first", "indexed",
         "f.multiply(f.index(number), spec.step * STORAGE_BYTES[spec.indices])",
         "f.multiply(f.index(0 * number), spec.step * STORAGE_BYTES[spec.indices])"),
        ("tail", "the last slice is not put", "indexed",
         "f.loop(*units), f.loop(0, rows) as row:", "f.loop(*units), f.loop(0, f.subtract(rows, 1)) as row:"),
        ("offset", "a negative index counts from the last but one", "indexed",
         "wrapped = f.add(index, size)", "wrapped = f.add(index, f.subtract(size, 1))"),
        ("operand", "what is added is doubled", "indexed",
         "value = arithmetic.math.add(there, value)", "value = arithmetic.math.add(value, value)"),
    ]),
    *in_file(EMIT + "resize_table.py", _DYNAMIC, [
        ("offset", "half pixel left out of a table", "resize_open",
         "middle = f.binary(\"fsub\", shifted, half)", "middle = shifted"),
        ("scale", "weights of a table exchanged", "resize_open",
         "yield base, f.binary(\"fsub\", one, share)\n            yield f.binary(\"fadd\", base, one), share",
         "yield base, share\n            yield f.binary(\"fadd\", base, one), f.binary(\"fsub\", one, share)"),
        ("border", "the pixel beyond the edge is the one before the last", "resize_open",
         "f.index(self.source - 1))", "f.index(self.source - 2))"),
        ("scale", "corners not aligned", "resize_open",
         "f, self.target - 1)))  # fmt: skip", "f, self.target)))  # fmt: skip"),
        ("rounding", "nearest by the floor", "resize_open",
         "at = self._rounded(f, \"ceil\", f.binary(\"fsub\", x, half))", "at = self._rounded(f, \"floor\", x)"),
    ]),
)  # fmt: skip
