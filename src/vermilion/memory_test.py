from __future__ import annotations

import numpy as np

from vermilion.memory import peak_rss_mb


def test_the_peak_is_in_megabytes_and_never_falls() -> None:
    before = peak_rss_mb()
    assert 20 < before < 50_000, "a Python process with numpy, on any machine"
    size_mb = int(before) + 100
    block = np.ones(size_mb * 1_000_000, np.uint8)
    during = peak_rss_mb()
    assert during > block.nbytes / 1e6
    del block
    # Linux counts pages per thread and adds up now and then: the mark may move by some of them.
    assert peak_rss_mb() > 0.98 * during
