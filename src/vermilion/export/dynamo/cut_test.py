from __future__ import annotations

from typing import Any

import pytest

from vermilion.export.dynamo.cut import cut, number_positions, with_tensors_for_numbers

pytestmark = pytest.mark.needs("torch")


def function(x: Any, w: Any, n: Any) -> Any:
    y = x @ w
    return (y * n + n, x.view(n, -1), y.relu())


def test_constants_and_outputs() -> None:
    import torch

    module = torch.fx.symbolic_trace(function)
    x, w = torch.randn(4, 3), torch.randn(3, 5)
    expected = module(x, w, 2)
    made = cut(module, {1: w, 2: 2}, [2, 0])
    assert [str(n.target) for n in made.graph.nodes if n.op == "placeholder"] == ["x"]
    assert made.constant_1.data_ptr() == w.data_ptr()  # shared, not copied
    for one, other in zip(made(x), (expected[2], expected[0]), strict=True):
        assert torch.equal(one, other)
    assert len(list(module.graph.nodes)) == 9  # as it was
    assert all(torch.equal(*both) for both in zip(module(x, w, 2), expected, strict=True))


def test_what_no_output_needs_is_not_in_it() -> None:
    import torch

    made = cut(torch.fx.symbolic_trace(function), {}, [1])
    assert [n.op for n in made.graph.nodes if n.op != "placeholder"] == ["call_method", "output"]
    (view,) = made(torch.ones(4, 3), None, 2)
    assert view.shape == (2, 6)


def test_numbers_are_tensors_that_change_no_type() -> None:
    import torch

    def scaled(x: Any, s: Any) -> Any:
        return (x * s.item(),)

    module = torch.fx.symbolic_trace(scaled)
    s = torch.tensor(0.1, dtype=torch.float64)
    for kind in (torch.float32, torch.float64, torch.int64):
        x = torch.ones(2, dtype=kind)
        (found,) = with_tensors_for_numbers(module, [x, s])(x, s)
        assert torch.equal(found, scaled(x, s)[0])
        assert found.dtype == scaled(x, s)[0].dtype
    plain = torch.fx.symbolic_trace(function)
    assert with_tensors_for_numbers(plain, [x, x, 2]) is plain


def test_a_number_that_an_operator_takes_is_a_constant() -> None:
    import torch

    def function(x: Any, s: Any, t: Any) -> Any:
        return (torch.nn.functional.layer_norm(x, (3,), eps=s.item()) * t.item(),)

    module = torch.fx.symbolic_trace(function)
    assert number_positions(module) == (1,)
    arguments = torch.arange(6.0).reshape(2, 3), torch.tensor(0.5), torch.tensor(2.0)
    made = with_tensors_for_numbers(module, arguments)
    assert torch.equal(made(*arguments)[0], function(*arguments)[0])
    assert torch.equal(made(arguments[0], None, arguments[2])[0], function(*arguments)[0])
