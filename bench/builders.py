"""The graph builders of the tests, under another name: `models` is taken here.

And the files that packages on PyPI carry, which the tests take out of their wheels.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parent.parent / "tests"
BUILDERS_FILE = TESTS / "models.py"
sys.path.append(str(TESTS))

from model_wheels import package_file  # noqa: E402


def _test_models() -> ModuleType:
    """Load the builders that the tests use."""
    spec = importlib.util.spec_from_file_location("vermilion_test_models", BUILDERS_FILE)
    assert spec is not None, f"{BUILDERS_FILE} is a Python file"
    assert spec.loader is not None, f"{BUILDERS_FILE} is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD: Any = _test_models()

__all__ = ["BUILD", "BUILDERS_FILE", "package_file"]
