from __future__ import annotations

from typing import Any

import pytest

from vermilion.export.dynamo.graph_digest import graph_digest

pytestmark = pytest.mark.needs("torch")


def test_what_changes_a_program_changes_the_digest_and_nothing_else_does() -> None:
    import torch

    def digest(
        function: Any = lambda x, w: (x @ w,),
        x: Any = None,
        w: Any = None,
        constants: tuple[int, ...] = (1,),
        **options: object,
    ) -> str:
        module = torch.fx.symbolic_trace(function)
        arguments = [torch.ones(2, 3) if x is None else x, torch.ones(3, 3) if w is None else w]
        return graph_digest(module, arguments, constants, options)

    first = digest()
    assert len(first) == 64
    # Other numbers of an input, and another place of the same numbers.
    assert digest(x=torch.zeros(2, 3)) == digest(w=torch.ones(3, 3).t()) == first
    with torch.no_grad():
        without = digest()
    with torch.autocast("cpu", torch.bfloat16):
        cast = digest()
    others = [
        digest(lambda x, w: (x @ w + 1,)),
        digest(x=torch.ones(4, 3)),
        digest(x=torch.ones(2, 3, dtype=torch.float64)),
        digest(x=7),
        digest(x=8),
        digest(w=torch.zeros(3, 3)),
        digest(w=torch.ones(3, 3, requires_grad=True)),
        digest(w=torch.ones(3, 3, dtype=torch.bfloat16)),
        digest(precision="bf16"),
        without,
        cast,
    ]
    assert len({first, *others}) == len(others) + 1


def test_tensors_in_the_graph_count_and_unknown_modules_have_no_digest() -> None:
    import torch

    class Holds(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("held", torch.full((2,), value))

        def forward(self, x: Any) -> Any:
            return (x + self.held,)

    def digest(module: Any) -> str:
        return graph_digest(torch.fx.symbolic_trace(module), [torch.ones(2)], (), {})

    assert digest(Holds(1.0)) == digest(Holds(1.0)) != digest(Holds(2.0))
    assert digest(torch.nn.Sequential(torch.nn.Linear(2, 2))) == ""
