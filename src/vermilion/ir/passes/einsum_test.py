"""Einsum in other operators: what ONNX Runtime computes stays what it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.einsum import write_einsum
from vermilion.ir.passes.rewrite import Notes

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "h": 2, "i": 7, "j": 1, "k": 8}
EQUATIONS = [
    "ab,bc->ac", "ab,cb->ac", "abc,cd->abd", "abc,adc->abd", "abhd,achd->ahbc", "ahbc,achd->abhd",
    "abhd,hde->abe", "abcd,bed->abce", "ab,ab->", "ab,ab->a", "a,b->ab", "ab,cd->cadb", "ab,c->ab",
    "abc,ab->c", "abc,d->ad", "abcd->dcba", "abc->b", "abc->", "ab,bc", "ba", "aij,ajk->aik",
    "ab,ac->abc", "i,i->i", "abcd,cd->ab",
]  # fmt: skip


def model_of(equation: str, dynamic: str = "") -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return the model of one Einsum, and inputs; labels in `dynamic` are dynamic sizes."""
    rng = np.random.default_rng(1)
    inputs, feeds = [], {}
    for name, labels in zip("xy", equation.partition("->")[0].split(","), strict=False):
        sizes = ",".join(f"N{c}" if c in dynamic else str(SIZES[c]) for c in labels)
        inputs.append(f"float[{sizes}] {name}")
        feeds[name] = rng.standard_normal([SIZES[c] for c in labels]).astype(np.float32)
    head = '<ir_version: 8, opset_import: ["" : 17]> g'
    body = f'y0 = Einsum<equation = "{equation}"> ({", ".join(feeds)})'
    model = ir.from_onnx_text(f"{head} ({', '.join(inputs)}) => (float y0) {{ {body} }}")
    model.graph.outputs[0].shape = None
    return model, feeds


@pytest.mark.parametrize("dynamic", ["", "a"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_an_einsum_is_what_it_was(equation: str, dynamic: str) -> None:
    model, feeds = model_of(equation, dynamic)
    wanted = run_session(open_session(model), feeds)["y0"]
    write_einsum(model, notes := Notes())
    assert notes.fired == 1, notes.refusals
    assert "Einsum" not in {node.op_type for node in model.graph}
    got = run_session(open_session(model), feeds)["y0"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "dynamic", "words"),
    [
        ("aa->a", "", "along a diagonal"),
        ("a...,...b->ab", "", "no label"),
        ("abcd,abe->cde", "ac", "more than one open size"),
    ],
)
def test_what_cannot_be_written_stays_and_says_why(equation: str, dynamic: str, words: str) -> None:
    if "." in equation:
        model, _ = model_of("ab,bc->ac")
        model.graph[0].attributes.add(ir.AttrString("equation", equation))
    else:
        model, _ = model_of(equation, dynamic)
    write_einsum(model, notes := Notes())
    assert notes.fired == 0
    assert words in notes.refusals[0][1].reason
