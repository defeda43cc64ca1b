import ml_dtypes
import numpy as np
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.ort_values import _array, owned_value
from vermilion.ir.passes.contract_test import parse

TYPES = {
    "bfloat16": (ml_dtypes.bfloat16, 16),
    "float8e4m3fn": (ml_dtypes.float8_e4m3fn, 17),
    "float8e5m2": (ml_dtypes.float8_e5m2, 19),
    "uint4": (ml_dtypes.uint4, 21),
    "int4": (ml_dtypes.int4, 22),
}


@pytest.mark.parametrize("count", [0, 1, 4, 7])
@pytest.mark.parametrize("name", TYPES)
def test_types_that_numpy_does_not_have_go_in_and_come_out(name, count) -> None:
    dtype, number = TYPES[name]
    values = np.array([1, 7, 0, 3, 2, 5, 6])[:count]
    if name not in ("uint4",):
        values = -values
    array = values.astype(dtype)
    model = parse(
        f"({name}[{count}] x) => ({name}[{count}] y, float[{count}] z)"
        f" {{ z = Cast<to=1>(x) y = Cast<to={number}>(z) }}",
        21,
        10,
    )
    found = run_session(open_session(model, optimize=False, quiet=True), {"x": array})
    assert np.array_equal(found["z"], array.astype(np.float32))
    assert found["y"].dtype == dtype
    assert np.array_equal(found["y"].astype(np.float32), array.astype(np.float32))


def test_a_scalar_stays_one() -> None:
    model = parse("(bfloat16 x) => (bfloat16 y) { z = Cast<to=1>(x) y = Cast<to=16>(z) }", 21, 10)
    session = open_session(model, optimize=False, quiet=True)
    found = run_session(session, {"x": np.array(2.5, ml_dtypes.bfloat16)})["y"]
    assert found.shape == ()
    assert float(found) == 2.5


@pytest.mark.parametrize("dtype", [*(kind for kind, _ in TYPES.values()), np.float32, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_a_value_keeps_what_it_was_given(dtype, shape) -> None:
    array = np.ones(shape, dtype)
    value = owned_value(array)
    assert list(value.shape()) == list(shape)
    if np.dtype(dtype).kind in "fb" and np.dtype(dtype).isbuiltin == 1:
        found = value.numpy()
        assert found.size == 0 or np.shares_memory(found, array)
        del array, value
    else:
        found = _array(value)
    assert found.dtype == dtype
    assert (found.astype(np.float32) == 1).all()


def test_what_may_not_be_written_is_copied() -> None:
    array = np.ones(3, np.float32)
    array.setflags(write=False)
    assert not np.shares_memory(owned_value(array).numpy(), array)
