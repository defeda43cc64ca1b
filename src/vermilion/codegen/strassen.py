"""Strassen's seven products of sums of quarters, that give a matrix product of eight.

Quarters are numbered by rows: 0 1 over 2 3, on the left, on the right and of the result.

Source: Strassen 1969, "Gaussian elimination is not optimal".
"""

from __future__ import annotations

Sum = tuple[tuple[int, int], ...]  # (quarter or product, sign)

# Left sum times right sum. The second and third right sums, and the next two, multiply rows that
# are not cut: with left halves a and b, a + b times the former, plus b and a times the latter.
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
