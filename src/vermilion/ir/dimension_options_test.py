from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from vermilion.bench.cases import Sizes, prepare_case
from vermilion.cli.options import parse_dims
from vermilion.errors import OptionError
from vermilion.ir.dimension_options import dimension_options

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("float[batch, seq, 8] x", "--dim batch=1 --dim seq=128"),
        ("float[batch, 8] x, float[batch, n] y", "--dim batch=1 --dim n=128"),
        ("float[?, 8] x, float[4] y", "--dim x=1x8"),
        ("float[2, 8] x", ""),
    ],
)
def test_all_that_is_open_is_bound(inputs: str, options: str) -> None:
    text = f"{HEADER} g ({inputs}) => (float z) {{ z = ReduceMax <keepdims = 0> (x) }}"
    assert dimension_options(ir.from_onnx_text(text)) == options


def test_a_bench_that_follows_the_hint_has_no_open_dimension(tmp_path: Path) -> None:
    text = f"{HEADER} g (float[batch, seq, 8] x) => (float[batch, seq, 8] y) {{ y = Tanh (x) }}"
    how = {"precision": None, "inputs": {}, "folder": tmp_path}
    sizes, path, model = Sizes(None, None, 1), tmp_path / "m.onnx", ir.from_onnx_text(text)
    with pytest.raises(OptionError, match="open dimensions: batch, seq") as raised:
        prepare_case(path, model, sizes, dims={}, **how)  # type: ignore[arg-type]
    words = raised.value.hint.partition("`")[2].rstrip("`").replace("--dim", "").split()
    case = prepare_case(path, model, sizes, dims=parse_dims(words), **how)  # type: ignore[arg-type]
    assert (case.batch, case.reference["y"].shape) == (1, (1, 128, 8))
