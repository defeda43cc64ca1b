"""Einsum in other operators: what ONNX Runtime computes stays what it was."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.opset import constant_of
from vermilion.ir.passes.einsum import write_einsum
from vermilion.ir.passes.rewrite import Notes

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "h": 2, "i": 7, "j": 1, "k": 8}
EQUATIONS = [
    "ab,bc->ac", "ab,cb->ac", "abc,cd->abd", "abc,adc->abd", "abhd,achd->ahbc", "ahbc,achd->abhd",
    "abhd,hde->abe", "abcd,bed->abce", "ab,ab->", "ab,ab->a", "a,b->ab", "ab,cd->cadb", "ab,c->ab",
    "abc,ab->c", "abc,d->ad", "abcd,abe->cde", "abcd->dcba", "abc->b", "abc->", "ab,bc", "ba",
    "aij,ajk->aik", "ab,ac->abc", "i,i->i", "abcd,cd->ab", "abc,c->bac", "abc,b->abc",
    "ab,cd->acbd",
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
        ("ab,bc->ac", "", "repeats an axis"),
        ("habcd,habe->hcde", "ac", "more than one open size"),
    ],
)
def test_what_cannot_be_written_stays_and_says_why(equation: str, dynamic: str, words: str) -> None:
    if "repeats" in words:
        model, _ = model_of(equation)
        shape = model.graph.inputs[1].shape
        assert shape is not None
        model.graph.inputs[1].shape = ir.Shape([1, *shape[1:]])
    elif "." in equation:
        model, _ = model_of("ab,bc->ac")
        model.graph[0].attributes.add(ir.AttrString("equation", equation))
    else:
        model, _ = model_of(equation, dynamic)
    write_einsum(model, notes := Notes())
    assert notes.fired == 0
    assert words in notes.refusals[0][1].reason


# Equation, axes of the weight, operators that are left.
WEIGHTED = {
    "btd,de->bte": ("de", ["MatMul"]),
    "btd, ed -> bte": ("ed", ["MatMul"]),
    "btd,dhk->bthk": ("dhk", ["MatMul", "Reshape"]),
    "btd,de->bet": ("de", ["MatMul", "Transpose"]),
    "btd,tde->be": ("tde", ["Reshape", "MatMul"]),
    "btd,bde->bte": ("bde", ["MatMul"]),
    "btd,d->bt": ("d", ["MatMul"]),
    "btd,de->be": ("de", ["ReduceSum", "MatMul"]),
    "btd,d->btd": ("d", ["Mul"]),
    "btd,t->bdt": ("t", ["Transpose", "Mul"]),
}


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("equation", WEIGHTED)
def test_a_constant_is_the_right_side_and_sorted_at_once(equation: str, is_first: bool) -> None:
    sizes, (labels, operators) = {**SIZES, "b": 2, "t": 3, "k": 2}, WEIGHTED[equation]
    rng = np.random.default_rng(2)
    weight = rng.standard_normal([sizes[c] for c in labels]).astype(np.float32)
    names, words = "x, w", equation
    if is_first:
        given, arrow, result = equation.partition("->")
        words, names = ",".join(reversed(given.split(","))) + arrow + result, "w, x"
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,5] x) => (float y) '
        f'{{ y = Einsum<equation = "{words}"> ({names}) }}'
    )
    model.graph.outputs[0].shape = None
    constant = next(v for v in model.graph[0].inputs if v is not None and v.name == "w")
    constant.const_value = ir.tensor(weight, name="w")
    constant.shape, constant.type = ir.Shape(weight.shape), ir.TensorType(ir.DataType.FLOAT)
    model.graph.register_initializer(constant)
    feeds = {"x": rng.standard_normal((2, 3, 5)).astype(np.float32)}
    wanted = run_session(open_session(model), feeds)["y"]
    write_einsum(model, notes := Notes())
    assert notes.fired == 1, notes.refusals
    assert [n.op_type for n in model.graph if n.op_type != "Constant"] == operators
    product = next(n for n in model.graph if n.op_type in ("MatMul", "Mul"))
    assert constant_of(product.inputs[1]) is not None
    got = run_session(open_session(model), feeds)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
