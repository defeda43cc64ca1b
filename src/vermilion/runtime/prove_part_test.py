from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bundles
from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.backends.native_run import NativeExecutable
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.runtime.prove_part import PartProof, StagedFiles, prove_part
from vermilion.runtime.write import CompiledPart

ENTRY_BYTES = 8 * 8 * 40 * 40  # of `a`: as counted, twice float32

CONVOLVED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[32,8,40,40] x) => (float[32,8,40,40] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  y = Conv <pads = [1, 1, 1, 1]> (a, w)
}"""


def proof_within(limit: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> PartProof:
    """Return the proof of a batch of 32 where copies of so many bytes are held."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 8, 3, 3)).astype("f4")}
    model = bundles.model_from_text(CONVOLVED, weights)
    run_pass(infer_shapes, model)
    target, part = find_target("cpu"), Part("vaiml_par_0", "cpu", "native", model, (), 0.0)
    program = NativeBackend().compile(part, target, CompileOptions(threads=2), folder)
    compiled = CompiledPart(part, program, folder)
    loaded = NativeBackend().load(program, StagedFiles(compiled), target, CompileOptions())
    assert isinstance(loaded, NativeExecutable)
    assert loaded.entries == 32, "computed entry by entry, as the test wants it"
    inputs = {"x": random.standard_normal((32, 8, 40, 40)).astype("f4")}
    monkeypatch.setattr("vermilion.runtime.prove_part._WATCHED_BYTES", limit)
    return prove_part(compiled, loaded, inputs, loaded.run(inputs))


def test_of_a_batch_each_entry_s_copies_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = proof_within(2 * ENTRY_BYTES, tmp_path / "few", monkeypatch)
    all_of_them = proof_within(2 * 32 * ENTRY_BYTES, tmp_path / "all", monkeypatch)
    assert (few.compared, all_of_them.compared) == (1, 2)
    assert not few.wrong
    assert not all_of_them.wrong
