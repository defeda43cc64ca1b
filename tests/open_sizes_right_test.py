"""What the bench of right numbers at random sizes counts as wrong."""

from __future__ import annotations

import sys

import numpy as np

from pages import ROOT

sys.path.append(str(ROOT / "bench"))

from open_sizes_right import FLOOR_DB, compared


def test_an_output_of_another_shape_or_another_number_is_wrong() -> None:
    a = np.arange(1, 101, dtype=np.float32)
    assert compared([a], [a]) == (np.inf, 0.0)
    assert compared([a], [a[None]])[0] < FLOOR_DB
    assert compared([a, a], [a, 2 * a])[0] < FLOOR_DB
    assert compared([a], [np.where(a == 50, 51, a)])[0] < FLOOR_DB
    assert compared([a], [np.where(a == 50, np.nan, a).astype(np.float32)])[0] < FLOOR_DB
    assert compared([np.zeros(3, np.float32)], [np.ones(3, np.float32)])[0] < FLOOR_DB
