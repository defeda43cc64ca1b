"""Views are what numpy says of strides: reshaping, broadcasting, slicing without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vermilion.codegen.tensor import (
    View,
    allocate,
    contiguous_strides,
    reshaped_strides,
    weight,
)

Array = NDArray[Any]


def offsets(view: View) -> Array:
    """Return where each element of a view lies, in elements from the start of its buffer."""
    grid = np.indices(view.shape)
    strides = np.array(view.strides, np.int64).reshape(-1, *[1] * len(view.shape))
    return np.asarray((grid * strides).sum(0) + view.offset)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_view_under_another_shape_has_the_same_elements_in_order(data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(data.draw(st.sets(st.integers(1, len(factors)))) | {len(factors)})
        starts = [0, *cuts[:-1]]
        return tuple(int(np.prod(factors[a:b])) for a, b in zip(starts, cuts, strict=True))

    shape, wanted = grouped(), grouped()
    order = data.draw(st.permutations(range(len(shape))))
    view = allocate("x", "f32", shape, order)
    reshaped = view.reshaped(wanted)
    if reshaped is not None:
        assert np.array_equal(offsets(view).reshape(wanted), offsets(reshaped))
    if list(order) == sorted(order):
        assert reshaped is not None, "a row-major tensor takes any shape"


@pytest.mark.parametrize(
    ("shape", "strides", "wanted", "expected"),
    [
        ((2, 3, 4), (12, 4, 1), (4, 2, 3), (6, 3, 1)),
        ((6, 4), (4, 1), (2, 3, 1, 4), (12, 4, 0, 1)),
        ((2, 3), (1, 2), (6,), None),  # transposed
        ((2, 3), (0, 1), (2, 3), (0, 1)),  # repeated rows
        ((2, 3), (0, 0), (6,), (0,)),
        ((2, 3), (0, 1), (6,), None),
        ((4, 6), (12, 2), (4, 2, 3), (12, 6, 2)),  # with gaps
        ((4, 6), (12, 1), (24,), None),
        ((1, 1), (5, 7), (1,), (0,)),
    ],
)
def test_strides_under_another_shape(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...], expected: object
) -> None:
    assert reshaped_strides(shape, strides, wanted) == expected


def test_slices_broadcasts_and_orders_are_numpys() -> None:
    view = allocate("x", "f32", (4, 5, 6), (2, 0, 1))
    array = offsets(view)
    assert np.array_equal(offsets(view.permuted((1, 2, 0))), array.transpose(1, 2, 0))
    assert np.array_equal(offsets(view.sliced(1, 4, 3, -2)), array[:, 4::-2])
    assert np.array_equal(offsets(view.sliced(0, 2, 1).sliced(2, 1, 3)), array[2:3, :, 1:4])
    row = allocate("r", "f32", (5, 1))
    assert np.array_equal(
        offsets(row.broadcast((3, 5, 2))), np.broadcast_to(offsets(row), (3, 5, 2))
    )


def test_what_does_not_broadcast_is_an_error() -> None:
    with pytest.raises(AssertionError, match="does not broadcast"):
        allocate("x", "f32", (2, 3)).broadcast((2, 4))


def test_allocation_counts_bytes_and_lays_out_in_order() -> None:
    view = allocate("x", "bf16", (2, 3, 4, 5), (0, 2, 3, 1))
    assert (view.buffer.size_bytes, view.strides) == (240, (60, 1, 15, 3))
    assert allocate("scalar", "i64", ()).buffer.size_bytes == 8
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)


def test_a_weight_holds_its_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    view = weight("w", array, "f32")
    assert view.buffer.data is not None
    assert np.array_equal(view.buffer.data.view(np.float32).reshape(3, 2), array)
    assert (view.shape, view.strides) == ((3, 2), (2, 1))
