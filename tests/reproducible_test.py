"""One model, one program: the same bytes from every process, whatever its memory looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from models import branching_cnn, mobilenet, transformer_block
from random_quantized import RandomGraph
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.part import lower_part
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.pipeline import simplify

_CHILD = """
import hashlib, json, pathlib, random, sys
seed, folder = int(sys.argv[1]), sys.argv[2]
random.seed(seed)
kept = [bytearray(random.randrange(16, 4000)) for _ in range(random.randrange(20000))]
kept += [object() for _ in range(random.randrange(150000))]
import vermilion
found = {}
for model in sorted(pathlib.Path(folder).glob("*.onnx")):
    compiled = vermilion.compile_model(model, cache_dir=f"{folder}/cache{seed}")
    for file in sorted(pathlib.Path(compiled.artifact).rglob("*")):
        if file.suffix in (".o", ".bin") or file.name == "kernels.json":
            found[f"{model.name}: {file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
print(json.dumps(found))
"""


def _digests(folder: Path, seed: int) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(seed), str(folder)],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    models = {make.__name__: make() for make in (branching_cnn, mobilenet, transformer_block)}
    for seed in range(4):
        grown = RandomGraph(seed)
        models[f"quantized{seed}"] = grown.graph.model(grown.inputs, grown.outputs)
    for name, model in models.items():
        ir.save(model, tmp_path / f"{name}.onnx")
    first, *others = (_digests(tmp_path, seed) for seed in (1, 2, 3))
    assert sum("program.o" in name for name in first) >= len(models)
    for other in others:
        assert {name for name in first if first[name] != other[name]} == set()


@pytest.mark.parametrize("make", [mobilenet, branching_cnn, transformer_block])
def test_a_step_names_its_nodes_in_the_order_of_the_graph(make: Callable[[], ir.Model]) -> None:
    """So that its label, the last of them, is the last node that it computes."""
    model = simplify(make()).model
    place = {node.name: at for at, node in enumerate(model.graph)}
    longest = 0
    for step in lower_part(model, isa_of(find_target("cpu"))).steps:
        places = [place[name] for name in step.nodes if name in place]
        assert places == sorted(places)
        longest = max(longest, len(places))
    assert longest > 1
