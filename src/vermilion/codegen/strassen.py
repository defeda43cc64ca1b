"""Strassen's seven products of sums of quarters, that give a matrix product of eight.

Quarters are numbered by rows: 0 1 over 2 3, on the left, on the right and of the result.

Source: Strassen 1969, "Gaussian elimination is not optimal".
"""

from __future__ import annotations

Sum = tuple[tuple[int, int], ...]  # (quarter or product, sign)

# Left sum times right sum. With left halves a and b, the second and third times those two right sums,
# plus b and a times the next two, are the halves of rows that are not cut.
PRODUCTS: tuple[tuple[Sum, Sum], ...] = (
    (((0, 1), (3, 1)), ((0, 1), (3, 1))),
    (((2, 1), (3, 1)), ((0, 1),)),
    (((0, 1), (1, 1)), ((3, 1),)),
    (((3, 1),), ((2, 1), (0, -1))),
    (((0, 1),), ((1, 1), (3, -1))),
    (((2, 1), (0, -1)), ((0, 1), (1, 1))),
    (((1, 1), (3, -1)), ((2, 1), (3, 1))),
)
# What the quarters of the result are of the products.
RESULTS: tuple[Sum, ...] = (
    ((0, 1), (3, 1), (2, -1), (6, 1)),
    ((4, 1), (2, 1)),
    ((1, 1), (3, 1)),
    ((0, 1), (1, -1), (4, 1), (5, 1)),
)
