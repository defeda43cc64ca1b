"""Random graphs with open sizes, in the CPU build of the GPUs' module: right, or refused before.

Of forty graphs, those that IREE takes and whose sizes meet in some way are tried here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from random_graphs.gpu_sizes import try_sizes

pytestmark = pytest.mark.needs("iree")

SEEDS = (0, 3, 10)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_run_is_silently_wrong(seed: int, tmp_path: Path) -> None:
    found = try_sizes(seed, tmp_path)
    assert found.runs["right"] >= 1, found.reason
    assert not found.runs["wrong"], found.reason
    assert not found.runs["invalid"], "a run of what ONNX Runtime does not run was not refused"
