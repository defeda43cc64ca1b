"""Random networks are quantized in every scheme, and run wherever the float model runs.

Many more of them: `python tests/random_network_trial.py 0 1000 --seconds 600`.
"""

from __future__ import annotations

import importlib.util

import pytest

from random_network_trial import SCHEMES, attempt

# Each scheme at least once.
SEEDS = range(len(SCHEMES))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network(seed: int) -> None:
    has_openvino = importlib.util.find_spec("openvino") is not None
    outcome = attempt(seed, with_openvino=has_openvino and seed % 4 == 0)
    assert not outcome.fault, f"seed {seed} in {outcome.scheme}: {outcome.fault}\n{outcome.trace}"
