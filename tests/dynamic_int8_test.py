"""Models of ONNX Runtime's `quantize_dynamic`, whole: an encoder and a network of convolutions.

All of their nodes are generated, and one program is right at every batch, length and image size.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from c_library import same_bits
from vermilion.api import Compiled, compile_model
from vermilion.bench.networks import Encoder, bert
from vermilion.clib.library import library
from vermilion.errors import UnsupportedError
from vermilion.ir.literal.run import open_literally
from vermilion.ir.passes.pipeline import simplify
from vermilion.runtime.session import Session
from vermilion_runtime import Session as CSession

Array = NDArray[Any]
WORDS = 300

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
g (float[batch,3,height,width] x) => (float[batch,10] y) {
  a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w0, b0)  c = Relu (a)
  d = Conv <pads = [1,1,1,1], group = 16> (c, w1, b1)  e = Relu (d)
  f = Conv (e, w2, b2)  h = Add (f, c)  i = Relu (h)
  j = Conv <pads = [2,2,2,2], group = 2> (i, w3)  k = Relu (j)
  l = GlobalAveragePool (k)  m = Flatten (l)  y = Gemm <transB = 1> (m, w4, b4)
}"""
SHAPES = {
    "w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "b1": (16,), "w2": (16, 16, 1, 1),
    "b2": (16,), "w3": (24, 8, 5, 5), "w4": (10, 24), "b4": (10,),
}  # fmt: skip


def encoder(folder: Path, **options: Any) -> Path:
    """Write a small BERT with open batch and length, quantized."""
    random = np.random.default_rng(7)

    def weights(name: str, shape: tuple[int, ...], scale: float) -> Array:
        if scale == 0.0:
            return np.ones(shape, np.float32)
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    ir.save(bert("encoder", Encoder(2, 64, 4, WORDS, decomposed=False), weights), folder / "f.onnx")
    quantize_dynamic(folder / "f.onnx", folder / "q.onnx", **options)
    return folder / "q.onnx"


def network(folder: Path, **options: Any) -> Path:
    """Write a small network of convolutions with open batch and image size, quantized."""
    random = np.random.default_rng(3)
    proto = parser.parse_model(NETWORK)
    for name, shape in SHAPES.items():
        array = random.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(proto, folder / "f.onnx")
    quant_pre_process(folder / "f.onnx", folder / "p.onnx", skip_optimization=True)
    quantize_dynamic(folder / "p.onnx", folder / "q.onnx", **options)
    return folder / "q.onnx"


def unoptimized(path: Path) -> Callable[[dict[str, Array]], list[Array]]:
    """Return the literal run of a file: without VNNI, ONNX Runtime's own would not be exact.

    The interpreter has no QAttention: there it runs what that is written as.
    """
    try:
        model = open_literally(ir.load(path))
    except UnsupportedError:
        model = open_literally(simplify(ir.load(path)).model)
    return lambda inputs: list(model.run(inputs).values())


def sqnr_db(expected: Array, found: Array) -> float:
    """Return the signal to noise ratio in dB."""
    assert expected.shape == found.shape
    noise = np.sum(np.square(found.astype(np.float64) - expected))
    signal = np.sum(np.square(expected.astype(np.float64)))
    return float(10 * np.log10(signal / max(noise, signal * 1e-20)))


def tokens(batch: int, length: int) -> dict[str, Array]:
    random = np.random.default_rng(length)
    mask = np.ones((batch, length), np.int64)
    mask[0, length // 2 + 1 :] = 0
    return {
        "input_ids": random.integers(0, WORDS, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, length)),
    }


def names_of(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def left_out(compiled: Compiled) -> list[object]:
    """Return the rows of nodes that are not generated."""
    return [row for row in compiled.report.nodes if row["reason"]]


OPTIONS = {
    "int8": {"weight_type": QuantType.QInt8},
    "uint8": {"weight_type": QuantType.QUInt8},
    "int8 by channel": {"weight_type": QuantType.QInt8, "per_channel": True},
    "uint8 by channel": {"weight_type": QuantType.QUInt8, "per_channel": True},
    "products of two activations": {
        "weight_type": QuantType.QInt8, "extra_options": {"MatMulConstBOnly": False},
    },
}  # fmt: skip
# One code that is a tie moves the range of what follows, and with it every code there: an encoder
# of two layers with 384 tokens keeps 41 to 45 dB, one without a tie 137.
LEAST_DB = 35.0


@pytest.mark.parametrize("how", OPTIONS)
def test_an_encoder_is_native_at_every_batch_and_length(how: str, tmp_path: Path) -> None:
    path = encoder(tmp_path, **OPTIONS[how])
    products = 12 + 4 * ("activations" in how)
    assert names_of(path).count("MatMulInteger") == products
    compiled = compile_model(path, cache_dir=tmp_path / "cache")
    assert not left_out(compiled)
    session, expected = compiled.session(), unoptimized(path)
    for batch, length in ((1, 1), (1, 8), (2, 33), (3, 128), (5, 17)):
        fed = tokens(batch, length)
        (found,) = session.run(None, fed)
        (right,) = expected(fed)
        assert sqnr_db(right, found) > LEAST_DB, (batch, length)


@pytest.mark.parametrize("how", [how for how in OPTIONS if "int8" in how])
def test_a_network_of_convolutions_is_native_at_every_size(how: str, tmp_path: Path) -> None:
    path = network(tmp_path, **OPTIONS[how])
    assert names_of(path).count("ConvInteger") == 4
    compiled = compile_model(path, cache_dir=tmp_path / "cache")
    assert not left_out(compiled)
    session, expected = compiled.session(), unoptimized(path)
    random = np.random.default_rng(0)
    for batch, height, width in ((1, 32, 32), (2, 17, 40), (3, 33, 9)):
        x = random.standard_normal((batch, 3, height, width), dtype=np.float32)
        (found,) = session.run(None, {"x": x})
        (right,) = expected({"x": x})
        assert sqnr_db(right, found) > LEAST_DB, (batch, height, width)


@pytest.mark.needs("c compiler")
def test_the_c_library_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables for the sizes of a run know that a border's byte is read, not written."""
    path = network(tmp_path, weight_type=QuantType.QUInt8)
    file = tmp_path / "model.rai"
    compile_model(path, cache_dir=tmp_path / "cache", output=file)
    monkeypatch.setenv("VERMILION_LIBRARY", str(library()))
    random = np.random.default_rng(0)
    with Session(file) as session, CSession(file, threads=3) as other:
        for sizes in ((1, 64, 48), (2, 17, 40), (1, 64, 48)):
            x = random.standard_normal((sizes[0], 3, *sizes[1:]), dtype=np.float32)
            assert same_bits(other.run(None, {"x": x}), session.run(None, {"x": x}))


FUSED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[batch,length,32] x, uint8[batch,length,48] k, uint8 kz) =>
  (float[batch,length,48] y, float[batch,length,16] z, float[batch,length,48] a) {
  y = com.microsoft.DynamicQuantizeMatMul (x, w, ws, wz, b)
  z = com.microsoft.MatMulIntegerToFloat (k, v, ks, vs, kz, vz, c)
  a = com.microsoft.QAttention <num_heads = 4> (k, q, qb, ks0, qs, , kz, qz)
}"""


def test_the_fused_forms_are_native_too(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    proto = parser.parse_model(FUSED)
    arrays = {
        "w": random.integers(-128, 128, (32, 48)).astype(np.int8),
        "ws": random.uniform(0.01, 0.02, 48).astype(np.float32),
        "wz": random.integers(-20, 20, 48).astype(np.int8),
        "b": random.standard_normal(48, np.float32),
        "v": random.integers(0, 256, (48, 16)).astype(np.uint8),
        "ks": np.array([0.02], np.float32), "vs": np.array([0.01], np.float32),
        "q": random.integers(-128, 128, (48, 144)).astype(np.int8),
        "qb": random.standard_normal(144, np.float32), "qz": np.zeros(144, np.int8),
        "ks0": np.array(0.02, np.float32),
        "qs": random.uniform(0.001, 0.002, 144).astype(np.float32),
        "vz": np.array([7], np.uint8), "c": random.standard_normal(16, np.float32),
    }  # fmt: skip
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, tmp_path / "m.onnx")
    compiled = compile_model(tmp_path / "m.onnx", cache_dir=tmp_path / "cache")
    assert not left_out(compiled)
    session, expected = compiled.session(), unoptimized(tmp_path / "m.onnx")
    for batch, length in ((1, 1), (2, 19)):
        fed = {
            "x": random.standard_normal((batch, length, 32), np.float32),
            "k": random.integers(0, 256, (batch, length, 48)).astype(np.uint8),
            "kz": np.array(99, np.uint8),
        }
        for right, found in zip(expected(fed), session.run(None, fed), strict=True):
            assert sqnr_db(right, found) > 100.0


EMPTY = {
    "no rows": (
        "(uint8[N,4] a, uint8[4,3] b, uint8 s) => (int32[N,3] y) { y = MatMulInteger (a, b, s) }",
        {"a": np.zeros((0, 4), np.uint8), "b": np.ones((4, 3), np.uint8)},
        [np.zeros((0, 3), np.int32)],
    ),
    "no numbers": (
        "(float[N,4] a, uint8 s) => (uint8[N,4] q, float t, uint8 z, uint8 u)"
        " { q, t, z = DynamicQuantizeLinear (a)  u = Identity (s) }",
        {"a": np.zeros((0, 4), np.float32)},
        [np.zeros((0, 4), np.uint8), np.float32(1), np.uint8(0), np.uint8(3)],
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_is_computed_of_nothing(name: str, tmp_path: Path) -> None:
    text, given, wanted = EMPTY[name]
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g ' + text)
    onnx.save(proto, tmp_path / "m.onnx")
    compiled = compile_model(tmp_path / "m.onnx", cache_dir=tmp_path / "cache")
    found = compiled.session().run(None, {**given, "s": np.array(3, np.uint8)})
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, right)
