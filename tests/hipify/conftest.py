"""`pytest tests/hipify --update-golden` writes what the goldens should be; look at the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the expected files")
