"""One model, one program: the same bytes from every process and every checkout of the code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

import vermilion
from models import branching_cnn, mobilenet, small_cnn, transformer_block
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
print(json.dumps({"code": vermilion.__file__, "found": found}))
"""


_LEFT_OUT = shutil.ignore_patterns("*.pyc.*", "*_test.py")


def _digests(folder: Path, seed: int, source: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(seed), str(folder)],
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(source)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert Path(told["code"]).is_relative_to(source), "another checkout was compiled with"
    found: dict[str, str] = told["found"]
    return found


def test_every_process_and_checkout_writes_the_same_bytes(tmp_path: Path) -> None:
    builders = (branching_cnn, mobilenet, small_cnn, transformer_block)
    models = {make.__name__: make() for make in builders}
    for seed in range(6):
        grown = RandomGraph(seed)
        models[f"quantized{seed}"] = grown.graph.model(grown.inputs, grown.outputs)
    for name, model in models.items():
        ir.save(model, tmp_path / f"{name}.onnx")
    own, other = Path(vermilion.__file__).parents[1], tmp_path / "other checkout"
    shutil.copytree(own / "vermilion", other / "vermilion", ignore=_LEFT_OUT)
    sources = ((1, own), (2, own), (3, other))
    first, *others = (_digests(tmp_path, seed, source) for seed, source in sources)
    assert len(models) == 10
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
