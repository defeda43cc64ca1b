"""What is written with loops and conditions, compiled and run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vermilion.quantize.llvm_text import (
    DECLARATIONS,
    LANES,
    REALS,
    WORDS,
    Code,
    Phi,
    active,
    each,
    each_phi,
    everywhere,
    lanes_of,
    masked_load,
    masked_store,
)
from vermilion.quantize.native_code import machine_code

NUMBER, POINTER = ctypes.c_int64, ctypes.c_void_p


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path))


def compiled(code: Code, name: str, *kinds: object) -> Callable[..., int]:
    function: Callable[..., int] = machine_code(
        code.text(), {name: ctypes.CFUNCTYPE(NUMBER, *kinds)}
    )[name]
    return function


def test_loops_within_loops_and_a_condition_within_them() -> None:
    code = Code()
    with code.function("i64 @pairs(i64 %from, i64 %rows, i64 %columns)"):
        total = [Phi("%sum", "i64", "0", "%row_sum")]
        row = [Phi("%row", "i64", "%sum", "%row_sum")]
        with code.loop("i", "%rows", start="%from", step=2, phis=total):
            code.put("  %thrice_i = mul i64 %i, 3")
            with code.loop("j", "%columns", phis=row):
                code.put("  %product = mul i64 %i, %j", "  %bit = and i64 %product, 1")
                code.put("  %is_odd = icmp eq i64 %bit, 1")
                with code.when("%is_odd", "odd", [Phi("%term", "i64", "0", "%thrice")]):
                    code.put("  %thrice = mul i64 %thrice_i, %j")
                code.put("  %row_sum = add i64 %row, %term")
        code.put("  ret i64 %row_sum")
    pairs = compiled(code, "pairs", NUMBER, NUMBER, NUMBER)
    for start, rows, columns in ((0, 9, 7), (1, 10, 7), (3, 4, 1), (1, 2, 2)):
        wanted = sum(3 * i * j for i in range(start, rows, 2) for j in range(columns) if i * j % 2)
        assert pairs(start, rows, columns) == wanted
    # Not below the end even at first: there is one round all the same.
    assert pairs(5, 0, 4) == 3 * 5 * (1 + 3)


def test_what_is_repeated_until_it_is_enough() -> None:
    code = Code()
    with code.function("i64 @halvings(i64 %number)"):
        phis = [Phi("%left", "i64", "%number", "%half"), Phi("%count", "i64", "0", "%more")]
        with code.repeat("halving", "%is_left", phis):
            code.put("  %half = lshr i64 %left, 1", "  %more = add i64 %count, 1")
            code.put("  %is_left = icmp ne i64 %half, 0")
        code.put("  ret i64 %more")
    halvings = compiled(code, "halvings", NUMBER)
    assert [halvings(number) for number in (1, 2, 3, 4, 1000)] == [1, 2, 2, 3, 10]


@pytest.mark.parametrize("size", [1, LANES, 5 * LANES - 3])
def test_vectors_and_what_their_masks_leave_out(size: int) -> None:
    """to[n] = a·from[n] + n for each of two factors, and nothing behind the last one."""
    code = Code()
    code.put(DECLARATIONS)
    with code.function("i64 @scale(ptr %from, ptr %to, i64 %size, ptr %factors)"):
        for n in range(2):
            code.put(f"  %place{n} = getelementptr float, ptr %factors, i64 {n}")
            code.put(f"  %one{n} = load float, ptr %place{n}")
            code.put(everywhere(f"factor{n}", "float", f"%one{n}"))
        code.put(f"  %lanes = sitofp {WORDS} {lanes_of('i32')} to {REALS}")
        with code.loop("v", "%size", step=LANES, phis=each_phi(2, "%a{n}", "%b{n}")):
            code.put(f"  %mask = {active('%v', '%size')}")
            code.put("  %source = getelementptr float, ptr %from, i64 %v")
            code.put(f"  %x = {masked_load('%source', '%mask')}")
            code.put(each(2, f"  %y{{n}} = fmul {REALS} %x, %factor{{n}}"))
            code.put(each(2, f"  %b{{n}} = fadd {REALS} %a{{n}}, %y{{n}}"))
            code.put(f"  %both = fadd {REALS} %b0, %b1", f"  %out = fadd {REALS} %both, %lanes")
            code.put("  %target = getelementptr float, ptr %to, i64 %v")
            code.put(f"  {masked_store('%out', '%target', '%mask')}")
        code.put("  ret i64 0")
    scale = compiled(code, "scale", POINTER, POINTER, NUMBER, POINTER)
    given = np.arange(1, size + 1, dtype=np.float32)
    factors = np.array([2, 3], np.float32)
    to = np.full(size + LANES, np.nan, np.float32)
    scale(given.ctypes.data, to.ctypes.data, size, factors.ctypes.data)
    rows = np.zeros((-(-size // LANES), LANES), np.float32)
    rows.reshape(-1)[:size] = given
    wanted = 5 * rows.cumsum(axis=0) + np.arange(LANES)
    np.testing.assert_array_equal(to[:size], wanted.reshape(-1)[:size])
    assert np.isnan(to[size:]).all()
