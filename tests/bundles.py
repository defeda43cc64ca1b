"""Small bundles for the tests of what is written, cached and run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.ort import OrtBackend
from vermilion.hardware.targets.find import find_target
from vermilion.runtime.digest import model_digest
from vermilion.runtime.summary import Summary
from vermilion.runtime.write import ArtifactContent, CompiledPart, write_artifact

WHOLE = """<ir_version: 9, opset_import: ["" : 17]>
net (float[n, 64] x) => (float[n, 64] y, float[n, 128] h) {
  [first] a = MatMul (x, w1)
  [middle] h = Relu (a)
  [last] y = MatMul (h, w2)
}"""
FIRST = """<ir_version: 9, opset_import: ["" : 17]>
first (float[n, 64] x) => (float[n, 128] h) {
  [first] a = MatMul (x, w1)
  [middle] h = Relu (a)
}"""
SECOND = """<ir_version: 9, opset_import: ["" : 17]>
second (float[n, 128] h) => (float[n, 64] y) {
  [last] y = MatMul (h, w2)
}"""


def small_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Return two weights above the size from which they leave the model."""
    random = np.random.default_rng(seed)
    return {
        "w1": random.standard_normal((64, 128), dtype=np.float32),
        "w2": random.standard_normal((128, 64), dtype=np.float32),
    }


def model_from_text(text: str, weights: Mapping[str, np.ndarray]) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(proto)


def small_model(seed: int = 0) -> ir.Model:
    model = model_from_text(WHOLE, small_weights(seed))
    model.metadata_props["labels"] = "cat,dog"
    return model


def small_summary() -> Summary:
    return Summary(
        model="small.onnx",
        model_signature="0" * 32,
        device="cpu",
        model_data_type="float32",
        device_data_type="float32",
        operators=3,
        gops=3.3e-5,
        supported_operators=3,
        supported_gops=3.3e-5,
        offloaded_operators=2,
        offloaded_gops=1.65e-5,
        subgraphs_supported=1,
        subgraphs_offloaded=1,
    )


def small_cache_parts(seed: int = 0, **others: str) -> dict[str, str]:
    return {"model": model_digest(small_model(seed)), "target": "cpu", **others}


def small_parts(scratch: Path, seed: int = 0) -> tuple[CompiledPart, ...]:
    weights = small_weights(seed)
    rows = (
        ("vaiml_par_0", FIRST, {"w1": weights["w1"]}, ("first", "middle")),
        ("cpu_par_0", SECOND, {"w2": weights["w2"]}, ("last",)),
    )
    return tuple(compiled(scratch, *row) for row in rows)


def write_small(
    folder: Path, scratch: Path, seed: int = 0, cache_parts: Mapping[str, str] | None = None
) -> None:
    """Write a bundle of two parts."""
    write_artifact(folder, small_content(small_parts(scratch, seed), seed, cache_parts))


def small_content(
    parts: tuple[CompiledPart, ...], seed: int = 0, cache_parts: Mapping[str, str] | None = None
) -> ArtifactContent:
    return ArtifactContent(
        model=small_model(seed),
        parts=parts,
        target="cpu",
        options={"precision": "auto"},
        cache_parts=small_cache_parts(seed) if cache_parts is None else cache_parts,
        summary=small_summary(),
    )


def edit_manifest(
    folder: Path, change: Callable[[dict[str, object]], object], *, seal: bool = True
) -> None:
    """Change the manifest on disk; with `seal` its digest is made to fit again."""
    rows = json.loads((folder / "manifest.json").read_text())
    change(rows)
    if seal:
        rest = {key: value for key, value in rows.items() if key not in ("digest", "seal")}
        canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        rows["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(rows))


def replace_member(folder: Path, name: str, data: bytes) -> None:
    """Replace a file and everything that the manifest says of it."""
    (folder / name).write_bytes(data)

    def change(rows: dict[str, object]) -> None:
        members = rows["members"]
        assert isinstance(members, list)
        row = next(row for row in members if row["name"] == name)
        row.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    edit_manifest(folder, change)


def small_builder(
    scratch: Path, seed: int = 0, cache_parts: Mapping[str, str] | None = None
) -> Callable[[Path], None]:
    return lambda folder: write_small(folder, scratch, seed, cache_parts)


def small_answer(x: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return y and h."""
    weights = small_weights(seed)
    h = np.maximum(x @ weights["w1"], 0)
    return h @ weights["w2"], h


def compiled(
    scratch: Path, name: str, text: str, weights: dict[str, np.ndarray], nodes: tuple[str, ...]
) -> CompiledPart:
    model = model_from_text(text, weights)
    part = Part(name, "cpu", "ort", model, nodes, 1e-5)
    folder = scratch / name
    program = OrtBackend().compile(part, find_target("cpu"), CompileOptions(), folder)
    return CompiledPart(part, program, folder)
