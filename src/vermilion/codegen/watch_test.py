"""Inner tensors of programs for any sizes, copied while they run, against their literal values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.backends.native_open import OpenExecutable
from vermilion.backends.native_open_test import BATCH, GRAPHS, WIDE, error, feeds, model, reference
from vermilion.backends.native_run import BatchExecutable
from vermilion.hardware.targets.find import find_target
from vermilion.ir.literal.run import open_literally
from vermilion.ir.literal.types import complete_types
from vermilion.ir.passes.pipeline import simplify
from vermilion.proof.cut import cut_at
from vermilion.runtime.prove_part import StagedFiles, _of_these_sizes, _whole, prove_part
from vermilion.runtime.write import CompiledPart

# Of these tensors copies must be there, whatever is fused.
WATCHED = {
    "rows": {"a", "e", "g"}, "positions": {"e"}, "pictures": {"q", "t"}, "emptied": {"b", "q", "t"},
    "wide": {"e", "f"}, "batch": {"q", "r"},
}  # fmt: skip
SIZES = [(1, 1), (2, 16), (3, 17), (1, 48), (4, 5)]
ENOUGH_BYTES = 1 << 30


def compiled(proto: onnx.ModelProto, folder: Path, precision: str = "auto") -> CompiledPart:
    graph = simplify(ir.from_proto(proto)).model
    complete_types(graph)
    part = Part("part", "cpu", "native", graph, (), 0.0)
    options = CompileOptions(precision=precision)
    program = NativeBackend().compile(part, find_target("cpu"), options, folder)
    return CompiledPart(part, program, folder)


def loaded(part: CompiledPart) -> OpenExecutable | BatchExecutable:
    found = NativeBackend().load(
        part.program, StagedFiles(part), find_target("cpu"), CompileOptions()
    )
    assert isinstance(found, OpenExecutable | BatchExecutable)
    return found


def inputs_at(proto: onnx.ModelProto, n: int, s: int) -> dict[str, np.ndarray]:
    sizes = {"N": n, "S": s, "T": 1 + s % 7, "H": s + 3, "W": 2 * n + 5}
    return feeds(reference(proto), sizes, np.random.default_rng(s))


@pytest.mark.parametrize("name", [*GRAPHS, "wide", "batch"])
def test_copies_are_what_the_nodes_give_at_any_size(name: str, tmp_path: Path) -> None:
    proto = model({**GRAPHS, "wide": WIDE, "batch": BATCH}[name])
    part = compiled(proto, tmp_path)
    program, graph = loaded(part), part.part.model
    assert part.program.numerics is not None
    seen = set[str]()
    for n, s in SIZES:
        given = inputs_at(proto, n, s)
        outputs, copies = program.run_watched(given, part.program.numerics.tensors, ENOUGH_BYTES)  # type: ignore[arg-type]
        for key, array in program.run(given).items():
            np.testing.assert_array_equal(array, outputs[key])
        found = _whole(copies, _of_these_sizes(graph, program, given))
        if not found:
            continue
        inner = cut_at(graph, found)
        expected = open_literally(inner.model).run(inner.inputs(given, found), inner.names)
        for key, array in found.items():
            assert array.shape == expected[key].shape, (n, s, key)
            assert error(expected[key], array) < 1e-5, (n, s, key)
        seen |= set(found)
    assert seen >= WATCHED.get(name, set())


@pytest.mark.parametrize("precision", ["auto", "bf16"])
@pytest.mark.parametrize("name", ["rows", "pictures", "batch"])
def test_a_part_of_any_size_is_judged_at_its_inner_tensors(
    name: str, precision: str, tmp_path: Path
) -> None:
    proto = model({**GRAPHS, "batch": BATCH}[name])
    part = compiled(proto, tmp_path, precision)
    program = loaded(part)
    for n, s in ((1, 1), (3, 17)):
        given = inputs_at(proto, n, s)
        proof = prove_part(part, program, given, program.run(given))
        assert not proof.wrong
        assert not proof.unproven
        assert proof.compared > len(proto.graph.output)
