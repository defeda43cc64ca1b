from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from vermilion.ir.execute import open_session, run_session
from vermilion.progress import no_progress
from vermilion.quantize.algorithms.fill import noted_factors
from vermilion.quantize.calibrate import open_fetching
from vermilion.quantize.look import look
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import decide, quantize_model

RNG = np.random.default_rng(0)
IMAGE, ROWS = (1, 4, 12, 12), (1, 10, 16)

# What is read, and the nodes; the last one gives y.
BODIES = {
    "convolutions": (IMAGE, "a = Conv<pads=[1,1,1,1]>(x, c, b4) r = Relu(a) y = Conv(r, d, b4)"),
    "residual": (
        IMAGE,
        "a = Conv(x, d, b4) r = Relu(a) e = Conv(r, d2) f = Add(r, e) p = MaxPool"
        "<kernel_shape=[2,2], strides=[2,2]>(f) g = Add(p, place) y = Conv(g, d3)",
    ),
    "joined": (
        IMAGE,
        "a = Conv(x, d) e = Conv(x, d2) j = Concat<axis=1>(a, e) y = Conv(j, wide)",
    ),
    "transposed": (
        IMAGE,
        "a = Conv(x, d) t = ConvTranspose<strides=[2,2]>(a, up, b4) y = Conv(t, d2)",
    ),
    "normalized": (
        ROWS,
        "a = MatMul(x, w) n = LayerNormalization<epsilon=0.01>(a, gain, shift) m = MatMul(n, w2)"
        " s = Add(a, m) q = LayerNormalization<epsilon=0.01>(s, gain2, shift2) y = MatMul(q, w3)",
    ),
    "of two": (
        ROWS,
        "q = MatMul(x, w) k = MatMul(x, w2) t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t)"
        " p = Softmax(s) v = MatMul(x, w3) o = MatMul(p, v) y = MatMul(o, w4)",
    ),
    "gated": (
        IMAGE,
        "a = Conv(x, d) m = GlobalAveragePool(a) c1 = Conv(m, d2) s = Sigmoid(c1) g = Mul(a, s)"
        " y = Conv(g, d3)",
    ),
    "halved": (  # by a number that two nodes read
        ROWS,
        "a = MatMul(x, w) t = Div(a, root) e = Erf(t) i = Add(e, one) m = Mul(a, i)"
        " j = Mul(m, half) k = MatMul(j, w2) u = Div(k, root) f = Erf(u) l = Add(f, one)"
        " o = Mul(k, l) p = Mul(o, half) y = MatMul(p, w3)",
    ),
    "read twice": (ROWS, "a = MatMul(x, w) r = Relu(a) u = MatMul(r, w2) y = Add(u, r)"),
}


def constants() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    yield "c", rng.standard_normal((4, 4, 3, 3)) / 6
    yield from ((name, rng.standard_normal((4, 4, 1, 1)) / 2) for name in ("d", "d2", "d3"))
    yield "up", rng.standard_normal((4, 4, 2, 2)) / 2
    yield "wide", rng.standard_normal((4, 8, 1, 1)) / 3
    yield from ((name, rng.standard_normal((16, 16)) / 4) for name in ("w", "w2", "w3", "w4"))
    yield from ((name, 1.0 + rng.random(16)) for name in ("gain", "shift", "gain2", "shift2"))
    yield "b4", rng.standard_normal(4)
    yield "place", rng.standard_normal((1, 4, 1, 1))
    yield from (("half", np.asarray(0.5)), ("one", np.asarray(1.0)), ("root", np.sqrt(2.0)))


def model_of(case: str) -> ir.Model:
    shape, body = BODIES[case]
    given = ",".join(map(str, shape))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{given}] x) => (float y) {{ {body} }}'
    )
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in constants():
        if name in read:
            proto.graph.initializer.append(
                numpy_helper.from_array(np.asarray(array, np.float32), name)
            )
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, None))
    inferred = onnx.shape_inference.infer_shapes(proto)
    return ir.from_proto(inferred)


def samples(case: str, spread: float = 1.37) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    shape, _ = BODIES[case]
    return [{"x": (spread * rng.standard_normal(shape)).astype(np.float32)} for _ in range(8)]


def y_of(model: ir.Model, data: list[dict[str, np.ndarray]]) -> np.ndarray:
    session = open_session(model)
    return np.stack([run_session(session, sample)["y"] for sample in data])


@pytest.mark.parametrize("case", BODIES)
def test_the_result_stays(case: str) -> None:
    """Whatever factors there are: of the graph with them, before anything is rounded."""
    model, data = model_of(case), samples(case)
    seen = look(model, iter(data), Options(), no_progress)
    decided = decide(seen, Options())
    np.testing.assert_allclose(y_of(decided.work, data), y_of(model, data), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", [name for name in BODIES if name != "read twice"])
def test_some_tensor_of_each_is_filled(case: str) -> None:
    """For some spread of the inputs; one alone may happen to suit powers of two."""
    found = set()
    for spread in (1.0, 1.2, 1.45, 1.7):
        data = samples(case, spread)
        seen = look(model_of(case), iter(data), Options(), no_progress)
        found |= decide(seen, Options()).factors.by_name.keys()
    assert found
    assert "x" not in found
    assert "y" not in found


def test_less_noise_than_powers_of_two_leave() -> None:
    """Over spreads of an octave, where without factors it goes up and down by 6 dB."""
    model = model_of("convolutions")
    gains = []
    for spread in 2.0 ** np.linspace(0.0, 1.0, 6, endpoint=False):
        data = samples("convolutions", float(spread))
        ours, plain = (
            quantize_model(model, data, scheme="xint8", middle=middle).outputs[0].sqnr_db
            for middle in (False, True)
        )
        gains.append(ours - plain)
    assert np.mean(gains) > 0.2
    assert min(gains) > -0.1


def test_layers_are_reported_as_the_user_knows_them() -> None:
    model, data = model_of("convolutions"), samples("convolutions", 1.3)
    done = quantize_model(model, data, scheme="xint8")
    assert len(done.layers) == 2
    assert all(layer.sqnr_db > 20.0 for layer in done.layers)


def test_the_file_tells_what_grew() -> None:
    """By as much, every tensor of the float model's names is what it is there."""
    model = model_of("residual")
    grown = 0
    for spread in (1.0, 1.2, 1.45, 1.7):
        data = samples("residual", spread)
        done = quantize_model(model, data, scheme="xint8").model
        done = ir.from_proto(onnx.load_from_string(ir.to_proto(done).SerializeToString()))
        factors = noted_factors(done)
        grown += len(factors.by_name)
        there = {str(value.name) for node in done.graph for value in node.outputs}
        both = [str(v.name) for node in model.graph for v in node.outputs if str(v.name) in there]
        exact, near = (run_session(open_fetching(m, both), data[0], both) for m in (model, done))
        for name in both:
            off = near[name] / factors.of(name) - exact[name]
            assert float(np.sum(off**2)) < 1e-2 * float(np.sum(exact[name] ** 2)), name
    assert grown


@pytest.mark.parametrize("note", ["{", "[]", '{"a": "b", "c": 1e9, "d": null}', "1"])
def test_a_note_that_makes_no_sense_is_none(note: str) -> None:
    model = model_of("residual")
    model.metadata_props["vermilion.factors"] = note
    assert not noted_factors(model).by_name
