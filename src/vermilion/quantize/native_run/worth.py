"""Whether laying out a network for our kernels pays, by what was measured once.

Fitted to a ResNet-50, a thin one and the three networks of PP-OCR, on one core of a Zen 5 server
whose time ONNX Runtime 1.22 and our kernels had in turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vermilion.quantize.native_run.run import Network
from vermilion.quantize.native_run.tasks import multiplications

LEAST_SAVED_MS = 20.0
"""Below this nothing is gained that could be noticed."""

# What a sample takes less: for a million multiplications, and a million values that are fetched,
# which ONNX Runtime writes to memory that it has to ask for.
_PRODUCTS_MS = 0.004
_FETCHED_MS = 0.43

# What it takes more: for an operator in numpy, and a million of its values.
_OPERATOR_MS = 0.004
_VALUES_MS = 0.25

# What has to be done once: compiling, laying out a task, packing a million weights, and a run to
# see whether the results are right.
_COMPILED_MS = 40.0
_TASK_MS = 0.15
_WEIGHTS_MS = 1.4
_RUN_MS = 0.0055

_MILLION = 1e6


def saved_ms(network: Network, samples: int) -> float:
    """Give the CPU time that so many samples will take less than in ONNX Runtime."""
    products = sum(multiplications(task, network.shapes) for task in network.tasks) / _MILLION
    operators = [task.result for task in network.tasks if task.product is None]
    weights = sum(
        task.product.channels * task.product.taps * task.product.run
        for task in network.tasks
        if task.product is not None
    )
    each = products * _PRODUCTS_MS + _values(network, list(network.wanted)) * _FETCHED_MS
    each -= len(operators) * _OPERATOR_MS + _values(network, operators) * _VALUES_MS
    once = _COMPILED_MS + len(network.tasks) * _TASK_MS + weights / _MILLION * _WEIGHTS_MS
    return samples * each - once - products * _RUN_MS


def _values(network: Network, names: Sequence[str]) -> float:
    return sum(math.prod(network.shapes[name]) for name in names) / _MILLION
