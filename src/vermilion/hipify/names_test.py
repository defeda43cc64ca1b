"""PyTorch's table, where torch is installed."""

from __future__ import annotations

import sys

import pytest

from vermilion.errors import UnsupportedError
from vermilion.hipify.names import torch_names


@pytest.mark.needs("torch")
def test_its_names_come_without_importing_torch() -> None:
    before = "torch" in sys.modules
    names = torch_names()
    assert len(names) > 1000
    assert names["cudaMalloc"] == "hipMalloc"
    assert ("torch" in sys.modules) == before
    assert not [name for name in sys.modules if name.startswith("_vermilion_torch")]


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs torch"):
        torch_names()
