"""`torch.compile(model, backend="vermilion")`: whole networks, and a second process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entry_points import ROOT, announced

pytestmark = pytest.mark.needs("torch")

NETWORKS = ("resnet", "mobilenet_v2", "vgg", "densenet", "efficientnet", "transformer")

# Roundings of float32 in another order; PyTorch's own backends differ by as much.
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()


def network(name: str, *, batch: int = 1) -> tuple[Any, tuple[Any, ...]]:
    import torch

    import torch_networks as networks

    torch.manual_seed(0)
    if name == "transformer":
        return networks.settled(networks.transformer()), networks.tokens(batch=batch)
    return networks.settled(networks.PICTURES[name]()), (networks.picture(batch=batch),)


def tensors(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_native_and_right(name: str) -> None:
    import torch

    from vermilion.export import torch_backend

    model, inputs = network(name)
    compiled = torch.compile(model, backend=torch_backend, fullgraph=True)
    with torch.inference_mode():
        expected = tensors(model(*inputs))
        for _ in range(2):
            for one, other in zip(tensors(compiled(*inputs)), expected, strict=True):
                torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    (graph,) = torch_backend.graphs()
    assert graph.reason == ""
    assert graph.native == graph.operators > 10
    assert graph.sqnr_db is not None
    assert graph.sqnr_db > 100.0


def test_a_network_in_bfloat16_stays_in_it() -> None:
    import torch

    from vermilion.export import torch_backend

    model, inputs = network("transformer", batch=2)
    with torch.inference_mode():
        exact = model(*inputs)[0]
        model.bfloat16()
        found = torch.compile(model, backend=torch_backend)(*inputs)[0]
        theirs = model(*inputs)[0]
    assert found.dtype == torch.bfloat16
    (graph,) = torch_backend.graphs()
    assert graph.native == graph.operators > 10
    # Not farther from the exact states than PyTorch's bfloat16 is, but for a third of it.
    distance, allowed = (float((one.float() - exact).norm()) for one in (found, theirs))
    assert distance < allowed * 4 / 3


CHILD = """
import json, torch
from torch_compile_test import classifier
model, x = classifier()
with torch.inference_mode():
    found = torch.compile(model, backend="vermilion")(x)
    assert (found - model(x)).abs().max() < 1e-6
from vermilion.export import torch_backend
(graph,) = torch_backend.graphs()
print(json.dumps([graph.operators, graph.native, graph.cache_hit]))
"""


def classifier() -> tuple[Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), torch.ones(2, 8)


def test_another_process_finds_the_backend_by_its_name_and_what_was_compiled_here(
    tmp_path: Path,
) -> None:
    import torch

    from vermilion.export import torch_backend

    model, x = classifier()
    with torch.inference_mode():
        torch.compile(model, backend=torch_backend)(x)
    (graph,) = torch_backend.graphs()
    assert not graph.cache_hit
    paths = [announced(tmp_path), ROOT / "src", ROOT / "tests"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [graph.operators, graph.operators, True]
