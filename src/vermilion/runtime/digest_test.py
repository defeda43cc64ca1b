from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.runtime.digest import model_digest
from vermilion.store.digest import cache_digest

MODEL = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
net (float[n, 3] x, bool c) => (float[n, 3] y) <float[3] w = {1, 2, 3}> {
  [add] a = Add (x, w)
  [leaky] b = LeakyRelu <alpha = 0.1> (a)
  [own] d = own.twice (b)
  [choice] y = If (c) <
    then_branch = yes () => (float[n, 3] t) { [inner] t = Mul (d, w) },
    else_branch = no () => (float[n, 3] e) { e = Identity (d) }
  >
}
<domain: "own", opset_import: ["" : 17]>
twice (p) => (q) { q = Add (p, p) }
"""


def model(text: str = MODEL) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def test_the_same_model_has_the_same_digest() -> None:
    assert model_digest(model()) == model_digest(model())


def change(old: str, new: str) -> Callable[[], ir.Model]:
    assert old in MODEL
    return lambda: model(MODEL.replace(old, new))


def other_weight() -> ir.Model:
    changed = model()
    weight = np.array([1, 2, np.nextafter(np.float32(3), np.float32(4))], np.float32)
    changed.graph.initializers["w"].const_value = ir.Tensor(weight, name="w")
    return changed


def size_for_name() -> ir.Model:
    # A dimension called `4` is not the size 4.
    changed = model()
    changed.graph.inputs[0].shape = ir.Shape((ir.SymbolicDim("4"), 3))
    return changed


CHANGES = {
    "weight": change("w = {1, 2, 3}", "w = {1, 2, 4}"),
    "last bit of a weight": other_weight,
    "attribute": change("alpha = 0.1", "alpha = 0.2"),
    "attribute name": change("alpha = 0.1", "beta = 0.1"),
    "attribute type": change("alpha = 0.1", "alpha = 1"),
    "operator": change("[add] a = Add", "[add] a = Mul"),
    "order of inputs": change("Add (x, w)", "Add (w, x)"),
    "value name": change("(float[n, 3] y)", "(float[n, 3] z)"),
    "node name": change("[leaky]", "[other]"),
    "shape": change("float[n, 3] x", "float[4, 3] x"),
    "dimension name": change("float[n, 3] x", "float[m, 3] x"),
    "type": change("net (float[n, 3] x", "net (float16[n, 3] x"),
    "opset": change('"" : 17, "own"', '"" : 18, "own"'),
    "subgraph": change("t = Mul (d, w)", "t = Add (d, w)"),
    "function": change("q = Add (p, p)", "q = Mul (p, p)"),
    "function opset": change('opset_import: ["" : 17]>\ntwice', 'opset_import: ["" : 18]>\ntwice'),
    "name of a dimension": size_for_name,
}


@pytest.mark.parametrize("kind", CHANGES)
def test_one_change_gives_another_digest(kind: str) -> None:
    digests = {name: model_digest(make()) for name, make in CHANGES.items()}
    assert digests.pop(kind) not in {model_digest(model()), *digests.values()}


def test_descriptions_and_metadata_do_not_count() -> None:
    described = model()
    described.doc_string = "words"
    described.producer_name = "somebody"
    described.metadata_props["author"] = "somebody"
    described.graph.doc_string = "more words"
    next(iter(described.graph)).metadata_props["line"] = "7"
    assert model_digest(described) == model_digest(model())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "int64"])
def test_where_weights_lie_does_not_count(tmp_path: Path, dtype: str) -> None:
    values = np.arange(5000).astype(dtype)
    graph = '<ir_version: 9, opset_import: ["" : 17]> g (float x) => (float x) { }'
    inside = onnx.parser.parse_model(graph)
    inside.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    path = tmp_path / "model.onnx"
    outside = onnx.ModelProto.FromString(inside.SerializeToString())
    onnx.save(outside, path, save_as_external_data=True, size_threshold=0)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in tmp_path.glob("*"):
        if file.is_file():
            (moved / file.name).write_bytes(file.read_bytes())
    digests = {
        model_digest(ir.from_proto(inside)),
        model_digest(ir.load(path)),
        model_digest(ir.load(moved / "model.onnx")),
    }
    assert len(digests) == 1


def test_strings_and_empty_tensors_count() -> None:
    seen = set()
    for values in (["a", "bc"], ["ab", "c"], ["a"], []):
        changed = model()
        tensor = ir.StringTensor([v.encode() for v in values], shape=ir.Shape([len(values)]))
        changed.graph.initializers["w"].const_value = tensor
        seen.add(model_digest(changed))
    assert len(seen) == 4


def test_the_cache_digest_keeps_names_and_values_apart() -> None:
    assert cache_digest({"a": "1", "b": "2"}) == cache_digest({"b": "2", "a": "1"})
    different = [{"a": "1"}, {"a": "1", "b": ""}, {"a1": ""}, {"b": "1"}, {"a": "1b", "c": ""}, {}]
    assert len({cache_digest(parts) for parts in different}) == len(different)
