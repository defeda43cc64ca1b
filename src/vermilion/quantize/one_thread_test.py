from __future__ import annotations

import time

import numpy as np
import pytest

from vermilion.quantize.one_thread import _functions, one_thread


def test_numpy_as_it_comes_is_found_and_put_back() -> None:
    functions = _functions()
    if functions is None:
        pytest.skip("this system has a numpy without OpenBLAS")
    before = functions[0]()
    with pytest.raises(ZeroDivisionError), one_thread():  # noqa: PT012
        assert functions[0]() == 1
        _ = 1 // 0
    assert functions[0]() == before


def test_products_cost_no_more_than_one_thread_can_do() -> None:
    if _functions() is None:
        pytest.skip("this system has a numpy without OpenBLAS")
    a = np.ones((600, 600), np.float32)
    with one_thread():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(20):
            a @ a
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert cpu <= 1.2 * wall + 0.02
