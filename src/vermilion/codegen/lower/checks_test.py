"""Indices and divisors that only a run knows: a wrong one is an error, on any number of threads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import run_native
from native_text import normal, read, refusals
from vermilion.codegen.lower.batch_split import one_entry
from vermilion.errors import UnsupportedError

TABLE = normal(9, 3)
HINT = "what the node got does not fit it"


def run(model: ir.Model, threads: int = 1, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    return run_native(model, inputs, "cpu", "fp32", threads)


def gather(kind: str, count: int = 3, axis: int = 0) -> ir.Model:
    rest = "3" if axis == 0 else "9"
    shape = f"{count},{rest}" if axis == 0 else f"{rest},{count}"
    return read(
        f"(float[9,3] t, {kind}[{count}] i) => (float[{shape}] y) {{"
        f"[look] y = Gather<axis={axis}>(t, i) }}",
        t=TABLE,
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("wrong", [9, -10, 2**31 - 1, -(2**31)])
def test_an_index_outside_the_table_is_onnx_runtimes_error(
    wrong: int, kind: str, threads: int
) -> None:
    with pytest.raises(UnsupportedError) as error:
        run(gather(kind), threads, i=np.array([0, wrong, 2], kind))
    assert error.value.message == (
        f"running the model failed: indices element out of data bounds, idx={wrong} must be within "
        "the inclusive range [-9,8]"
    )
    assert error.value.where == "node `look`, Gather"
    assert HINT in error.value.hint


@pytest.mark.parametrize("axis", [0, 1])
def test_every_legal_index_is_taken(axis: int) -> None:
    size = TABLE.shape[axis]
    i = np.arange(-size, size)
    found = run(gather("int64", 2 * size, axis), i=i)["y"]
    assert np.array_equal(found, np.take(TABLE, i, axis))


def test_a_session_goes_on_after_an_error() -> None:
    model = gather("int64")
    with pytest.raises(UnsupportedError):
        run(model, i=np.array([0, 9, 2]))
    assert np.array_equal(run(model, i=np.array([0, 8, -9]))["y"], TABLE[[0, 8, -9]])


@pytest.mark.parametrize("at", [0, 4095, 8191, 8192, 20_000, 29_999])
def test_one_wrong_index_of_many_is_found_wherever_it_stands(at: int) -> None:
    i = np.zeros(30_000, np.int64)
    i[at] = 2**40
    with pytest.raises(UnsupportedError, match=f"idx={2**40} "):
        run(gather("int64", len(i)), 3, i=i)


@pytest.mark.parametrize(("kind", "wrong"), [("int64", 5), ("int32", -6)])
def test_picked_elements(kind: str, wrong: int) -> None:
    model = read(
        f"(float[5,4] x, {kind}[2,4] i) => (float[2,4] y) {{ y = GatherElements<axis=0>(x, i) }}"
    )
    i = np.zeros((2, 4), kind)
    i[1, 2] = wrong
    with pytest.raises(UnsupportedError, match=rf"idx={wrong} .*\[-5,4\].*GatherElements"):
        run(model, x=normal(5, 4), i=i)
    i[1, 2] = -5
    assert run(model, x=normal(5, 4), i=i)["y"].shape == (2, 4)


def test_indices_that_do_not_lie_side_by_side() -> None:
    model = read(
        """(float[9,3] t, int64[3,4,2] i, int64[1] b, int64[1] e, int64[1] a, int64[1] step)
            => (float[2,3,2,3] y) {
            s = Slice(i, b, e, a, step)
            p = Transpose<perm=[2,0,1]>(s)
            y = Gather(t, p)
        }""",
        t=TABLE, b=np.array([1]), e=np.array([4]), a=np.array([1]), step=np.array([2]),
    )  # fmt: skip
    i = np.full((3, 4, 2), 99)  # what is sliced away may be anything
    i[:, 1::2] = 8
    assert run(model, i=i)["y"].shape == (2, 3, 2, 3)
    i[2, 3, 1] = 9
    with pytest.raises(UnsupportedError, match="idx=9 "):
        run(model, i=i)


def test_an_index_that_is_computed_and_rows_that_are_used_further() -> None:
    model = read(
        """(float[9,3] t, int64[4] i, int64[1] one) => (float[4,3] y) {
            j = Add(i, one) r = Gather(t, j) y = Relu(r)
        }""",
        t=TABLE, one=np.array([1]),
    )  # fmt: skip
    assert np.array_equal(run(model, i=np.arange(4, 8))["y"], np.maximum(TABLE[5:9], 0))
    with pytest.raises(UnsupportedError, match="idx=9 "):
        run(model, i=np.arange(5, 9))


def test_a_table_in_8_bits() -> None:
    model = read(
        """(uint8[9,3] t, float s, uint8 z, int64[4] i) => (float[4,3] y) {
            f = DequantizeLinear(t, s, z) y = Gather(f, i)
        }""",
        t=np.arange(27, dtype=np.uint8).reshape(9, 3), s=np.float32(0.5), z=np.uint8(3),
    )  # fmt: skip
    assert run(model, i=np.arange(4))["y"][1, 0] == 0.0
    with pytest.raises(UnsupportedError, match="idx=-10 "):
        run(model, i=np.array([0, 1, -10, 2]))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["int32", "int64", "int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_whole_numbers_divided_by_zero(op: str, kind: str, threads: int) -> None:
    model = read(
        f"({kind}[50] a, {kind}[50] b, {kind} k) => ({kind}[50] y) {{"
        f"d = Sub(b, k) [quotient] y = {op}(a, d) }}",
        k=np.array(3, kind),
    )
    a, b = np.full(50, 7, kind), np.full(50, 5, kind)
    assert (run(model, threads, a=a, b=b)["y"] == (3 if op == "Div" else 1)).all()
    b[49] = 3
    with pytest.raises(UnsupportedError) as error:
        run(model, threads, a=a, b=b)
    assert error.value.message == "running the model failed: Integer division by zero"
    assert error.value.where == f"node `quotient`, {op}"


def test_a_divisor_that_repeats_and_one_that_has_more_readers() -> None:
    model = read(
        """(int64[4,5] a, int64[5] b) => (int64[4,5] y, int64[5] n) {
            m = Neg(b) q = Div(a, m) y = Add(q, m) n = Abs(m)
        }"""
    )
    a, b = np.full((4, 5), 12), np.arange(1, 6)
    assert np.array_equal(run(model, a=a, b=b)["n"], b)
    b[2] = 0
    with pytest.raises(UnsupportedError, match="Integer division by zero"):
        run(model, a=a, b=b)


def test_floats_are_divided_by_zero() -> None:
    model = read("(float[3] a, float[3] b) => (float[3] y) { y = Div(a, b) }")
    found = run(model, a=np.ones(3, np.float32), b=np.zeros(3, np.float32))
    assert np.isinf(found["y"]).all()


@pytest.mark.parametrize("wrong", [9, -10])
@pytest.mark.parametrize("count", [1, 2])
def test_a_constant_index_outside_is_left_to_onnx_runtime(count: int, wrong: int) -> None:
    model = read(
        f"(float[9,3] x, int64[{count}] i) => (float[{count},3] y) {{ y = Gather(x, i) }}",
        i=np.array([wrong, 0][:count]),
    )
    assert refusals(model) == [f"what Gather gives cannot be computed: index {wrong} of 9"]


def test_a_constant_divisor_of_zero_is_left_to_onnx_runtime() -> None:
    model = read(
        "(int64[3] x, int64[3] d) => (int64[3] y) { y = Div(x, d) }", d=np.array([1, 0, 2])
    )
    assert refusals(model) == ["what Div gives cannot be computed: integer division by zero"]


def test_every_entry_of_a_batch_is_looked_at() -> None:
    """Entries are run one by one; each has words of its own."""
    model = read(
        """(float[4,8,128,128] x, int64[4,8,128,128] a, int64[4,8,128,128] b, float[8,8,3,3] w)
            => (float[4,8,128,128] y, int64[4,8,128,128] q) {
            y = Conv<pads=[1,1,1,1]>(x, w) q = Div(a, b)
        }""",
        w=normal(8, 8, 3, 3),
    )
    assert one_entry(model) is not None
    shape = (4, 8, 128, 128)
    x, a, b = normal(*shape), np.full(shape, 4), np.full(shape, 2)
    assert (run(model, 2, x=x, a=a, b=b)["q"] == 2).all()
    for entry in range(4):
        b[...] = 2
        b[entry, 7, 127, 127] = 0
        with pytest.raises(UnsupportedError, match="Integer division by zero"):
            run(model, 2, x=x, a=a, b=b)
