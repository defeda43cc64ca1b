from __future__ import annotations

import numpy as np

from vermilion.backends.process.check import find_faults


def test_a_fault_of_one_entry_is_told_from_one_of_all() -> None:
    right = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    assert find_faults({"y": right}, {"y": right}, batch=4) == []
    swapped = right.copy()
    swapped[2] = -swapped[2]
    (fault,) = find_faults({"y": right}, {"y": swapped}, batch=4)
    assert (fault.kind, fault.entry) == ("wrong-entry", 2)
    (fault,) = find_faults({"y": right}, {"y": swapped}, batch=None)
    assert (fault.kind, fault.entry) == ("wrong", None)
    tokens = np.arange(1, 9, dtype=np.int64)
    blank = np.full(8, np.iinfo(np.int64).min)
    assert find_faults({"y": tokens}, {"y": blank}, batch=1)[0].kind == "unwritten"


def test_rounding_is_no_fault() -> None:
    import ml_dtypes

    right = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    rounded = right.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert find_faults({"y": right}, {"y": rounded}, batch=4) == []
    saturated = np.full((1, 8), 1e-7, np.float32)
    assert find_faults({"y": saturated}, {"y": 0 * saturated}, batch=1) == []
    masked = np.array([np.nan, 1, 2], np.float32)
    assert find_faults({"y": masked}, {"y": masked}, batch=1) == []
