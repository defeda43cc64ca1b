"""The cases of ONNX's backend node tests, by the module of onnx that holds them.

One module for all who want them: importing theirs registers the cases, once in a process.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from functools import cache

from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.test_case import TestCase

# Modules of cases that import codecs or print what they do; none of them is claimed.
LEFT_OUT = {"image_decoder", "ai_onnx_ml"}
MODULES = sorted(
    module.name
    for module in pkgutil.iter_modules(node_cases.__path__)
    if module.name not in LEFT_OUT and not module.ispkg
)


@cache
def cases_of(module: str) -> tuple[TestCase, ...]:
    """Return the cases that a module registers when it is imported."""
    before = len(node_cases._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{node_cases.__name__}.{module}")
    return tuple(node_cases._NodeTestCases[before:])
