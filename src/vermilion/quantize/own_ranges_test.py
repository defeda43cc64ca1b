from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import sqnr_from_sums
from vermilion.progress import no_progress
from vermilion.quantize.guard import Promise, quantize_guarded
from vermilion.quantize.look import look
from vermilion.quantize.options import Options
from vermilion.quantize.own_ranges import own_ranges
from vermilion.quantize.quantize import decide, quantize_model
from vermilion.quantize.sensitivity import measure_damage

ASKED = Options(scheme="a8w8", method="mse")


def _decides_by_its_largest() -> ir.Model:
    """Return a model whose `y` is what the last of 512 channels says, where few values are large.

    `z` reads all channels of the other sign, but for the last, where its few large values are.
    """
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1024,512] x) => (float[1,1024,8] y, float[1,1024,8] z) {
          a = Relu(x)
          y = MatMul(a, v)
          b = Neg(x)
          c = Relu(b)
          z = MatMul(c, w)
        }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    first = rng.standard_normal((512, 8)).astype(np.float32)
    second = first.copy()
    first[:-1] *= 0.001
    second[-1] = 0.0
    for name, array in (("v", first), ("w", second)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def _samples(count: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(4)
    for number in range(count):
        x = rng.standard_normal((1, 1024, 512)).astype(np.float32)
        if number % 2:
            # Of each sign one in 524,288 values that are not cut to zero.
            x[0, number % 256, -1] = 100.0
            x[0, (number + 1) % 256, -1] = -100.0
        yield {"x": x}


def test_rare_values_are_kept_where_they_decide() -> None:
    model = _decides_by_its_largest()
    held_out = list(_samples(6))
    seen = look(model, _samples(12), ASKED, no_progress, histograms=True)
    decided = decide(seen, ASKED)
    before = measure_damage(decided.work, decided.plan, decided.constants, held_out, no_progress)
    ranges, after = own_ranges(seen, ASKED, before, held_out, no_progress)
    assert ranges["a"] == "minmax"
    assert ranges.get("c") in {None, "percentile"}  # which cuts off more still
    noise = {row.names: row.noise for row in after}
    for row in before:
        if row.names == ("a",):
            assert noise[row.names] < 0.5 * row.noise
        elif row.names != ("c",):
            assert noise[row.names] == row.noise
    assert [row.noise for row in after] == sorted(noise.values(), reverse=True)


def _sqnr_db(model: ir.Model, other: ir.Model) -> float:
    pair = [open_session(m) for m in (model, other)]
    signal = noise = 0.0
    for sample in _samples(6):
        exact, found = (run_session(session, sample)["y"] for session in pair)
        signal += float(np.sum(np.square(exact, dtype=np.float64)))
        noise += float(np.sum(np.square(exact - found, dtype=np.float64)))
    return sqnr_from_sums(signal, noise)


def test_a_recipe_names_the_range_of_a_tensor() -> None:
    model = _decides_by_its_largest()
    plain = quantize_model(model, _samples(12), scheme="a8w8", method="mse")
    own = quantize_model(model, _samples(12), scheme="a8w8", method="mse", ranges={"a": "minmax"})
    assert _sqnr_db(model, own.model) > _sqnr_db(model, plain.model) + 3.0


def test_one_range_for_all_is_not_enough() -> None:
    """No method suits both tensors; with one each the promise holds, all products in 8 bits."""
    promise = Promise(min_sqnr_db=30.0)
    done = quantize_guarded(_decides_by_its_largest(), _samples(32), promise, ASKED)
    *before, last = done.ladder
    assert max(rung.sqnr_db for rung in before) < 20.0
    assert last.met
    assert last.options.ranges
    assert not last.options.wide
    assert last.eight_bit_share == pytest.approx(before[0].eight_bit_share)


def test_what_is_raised_keeps_them() -> None:
    promise = Promise(min_sqnr_db=40.0)
    done = quantize_guarded(_decides_by_its_largest(), _samples(32), promise, ASKED)
    assert done.met
    assert done.quantized.options.ranges
    assert done.quantized.options.wide
