"""Whether laying out a network for our kernels pays, by what was measured once.

Fitted to six networks with random weights, a trained thin ResNet-50 and the three networks of
PP-OCR, with the tensors that XINT8 and A8W8 fetch: 22 pairs of times, of 1 to 41 ms a sample in
ONNX Runtime 1.32, on one core of a Zen 5 server. A sample is 0.6 ms off on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from vermilion.quantize.native_code import this_isa
from vermilion.quantize.native_run.run import Network
from vermilion.quantize.native_run.tasks import multiplications

LEAST_SAVED_MS = 40.0
"""Below this nothing is gained that could be noticed."""

# What a sample takes less than in ONNX Runtime: for a million multiplications of a product, and
# of one that is done channel by channel; for a million values that are fetched. (Of these 0.057 in
# the run; the rest is the counting, which finds them in the cache: from PP-OCR's, quantized whole.)
_PRODUCTS_MS = 0.005
_CHANNELWISE_MS = 0.076
_FETCHED_MS = 0.15

# What it takes more: for an operator in numpy, and a million of its values.
_OPERATOR_MS = 0.005
_VALUES_MS = 0.059

# What has to be done once: compiling (38) and giving ONNX Runtime's memory back, laying out a task,
# packing a million weights; and a run that shows whether the results are right, by its
# multiplications and its values.
_TURNED_MS = 90.0
_TASK_MS = 0.022
_WEIGHTS_MS = 0.9
_RUN_PRODUCTS_MS = 0.0055
_RUN_VALUES_MS = 0.2

_MILLION = 1e6


def saved_ms(network: Network, samples: int) -> float:
    """Return the CPU time that so many samples will take less than in ONNX Runtime.

    It is none where the processor has no products of bfloat16: they take several instructions each.
    """
    if not this_isa().has_bf16:
        return -math.inf
    by_kind = {True: 0.0, False: 0.0}
    weights = 0
    for task in network.tasks:
        if task.product is not None:
            number = multiplications(task, network.shapes)
            by_kind[task.product.channelwise] += number / _MILLION
            weights += task.product.channels * task.product.taps * task.product.run
    operators = [task.result for task in network.tasks if task.product is None]
    values = _millions(network, operators)
    each = by_kind[False] * _PRODUCTS_MS + by_kind[True] * _CHANNELWISE_MS
    each += _millions(network, network.wanted) * _FETCHED_MS
    each -= len(operators) * _OPERATOR_MS + values * _VALUES_MS
    once = _TURNED_MS + len(network.tasks) * _TASK_MS + weights / _MILLION * _WEIGHTS_MS
    once += by_kind[False] * _RUN_PRODUCTS_MS + values * _RUN_VALUES_MS
    return samples * each - once


def _millions(network: Network, names: Iterable[str]) -> float:
    return sum(math.prod(network.shapes[name]) for name in names) / _MILLION
