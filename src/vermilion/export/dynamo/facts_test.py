from __future__ import annotations

from typing import Any

import pytest

from vermilion.errors import Refusal
from vermilion.export.dynamo.facts import GraphFacts, graph_facts

pytestmark = pytest.mark.needs("torch")


def facts(function: Any, *arguments: Any, grad: bool = False) -> GraphFacts | Refusal:
    import torch

    with torch.set_grad_enabled(grad):
        return graph_facts(torch.fx.symbolic_trace(function), arguments)


def test_outputs_are_computed_or_made_by_pytorch() -> None:
    import torch

    def function(x: Any, n: Any) -> Any:
        y = x + 1
        return y, x.view(-1), n, y, None, y.sum().to(torch.int64), x

    found = facts(function, torch.ones(2, 3), 7)
    assert isinstance(found, GraphFacts)
    assert found.places == (0, -1, -1, 0, -1, 1, -1)
    assert found.computed == (0, 5)
    assert found.data_types == ("float32", "int64")
    assert found.others == (1, 2, 4, 6)


def test_nothing_is_written_while_it_is_looked_at() -> None:
    import torch

    def function(x: Any) -> Any:
        y = x[0]
        y.add_(1)  # a view of the input
        return (x * 2,)

    x = torch.zeros(2, 3)
    found = facts(function, x)
    assert isinstance(found, Refusal)
    assert found.reason == "it writes into `x`"
    assert "return the new tensor" in found.hint
    assert not x.any()


def test_what_it_makes_itself_may_be_written_to() -> None:
    import torch

    assert isinstance(facts(lambda x: (torch.relu_(x + 1),), torch.ones(2)), GraphFacts)


def test_writing_into_a_buffer_is_training() -> None:
    import torch

    def function(x: Any, l_self_buffers_count_: Any) -> Any:
        l_self_buffers_count_.add_(1)
        return (x + 1,)

    found = facts(function, torch.ones(2), torch.zeros(()))
    assert isinstance(found, Refusal)
    assert "model.eval()" in found.hint


@pytest.mark.parametrize(("rate", "training"), [(0.5, True), (0.0, True), (0.5, False)])
def test_random_numbers_are_refused_where_they_are_drawn(rate: float, training: bool) -> None:
    import torch
    from torch.nn import functional

    def function(x: Any) -> Any:
        y = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0)
        return (functional.dropout(y, rate, training),)

    found = facts(function, torch.ones(1, 1, 4, 4))
    if rate and training:
        assert isinstance(found, Refusal)
        assert found.reason.startswith("it draws random numbers")
    else:
        assert isinstance(found, GraphFacts)


@pytest.mark.parametrize("inference", [False, True])
def test_gradients_are_refused_where_they_are_wanted(inference: bool) -> None:
    import torch

    weight = torch.ones(3, 3, requires_grad=True)
    found = facts(lambda x, w: (x @ w,), torch.ones(2, 3), weight, grad=True)
    assert isinstance(found, Refusal)
    assert "torch.inference_mode()" in found.hint
    detached = facts(lambda x, w: ((x @ w).detach(),), torch.ones(2, 3), weight, grad=True)
    assert isinstance(detached, GraphFacts)
    with torch.inference_mode(inference):
        assert isinstance(facts(lambda x, w: (x @ w,), torch.ones(2, 3), weight), GraphFacts)


def test_tensors_that_cannot_be_handed_over_are_named() -> None:
    import torch

    for tensor, words in (
        (torch.ones(2, dtype=torch.complex64), "`x` is complex64"),
        (torch.ones(2, device="meta"), "`x` is on meta"),
        (torch.ones(2, 2).to_sparse(), "`x` is not an ordinary tensor"),
    ):
        found = facts(lambda x: (x + 1,), tensor)
        assert isinstance(found, Refusal)
        assert words in found.reason
    found = facts(lambda x: (torch.fft.fft(x),), torch.ones(4))
    assert isinstance(found, Refusal)
    assert "`output 0` is complex64" in found.reason


def test_an_operator_that_fails_without_numbers_is_a_reason() -> None:
    import torch

    found = facts(lambda x: (x.nonzero(),), torch.ones(4))
    assert isinstance(found, Refusal)
    assert found.reason.startswith("PyTorch cannot run it without numbers: ")
