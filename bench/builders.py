"""The graph builders of the tests, under another name: `models` is taken here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

BUILDERS_FILE = Path(__file__).parent.parent / "tests" / "models.py"


def _test_models() -> ModuleType:
    """Load the builders that the tests use."""
    spec = importlib.util.spec_from_file_location("vermilion_test_models", BUILDERS_FILE)
    assert spec is not None, f"{BUILDERS_FILE} is a Python file"
    assert spec.loader is not None, f"{BUILDERS_FILE} is a Python file"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD: Any = _test_models()
