"""Graphs as dynamo makes them: what is compiled, what PyTorch runs, and what is said of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vermilion.export.dynamo import backend
from vermilion.export.dynamo.backend import (
    MAX_CHANGES,
    CompiledGraph,
    NotNativeWarning,
    RunsEagerlyWarning,
    torch_backend,
)

pytestmark = pytest.mark.needs("torch")
Compile = Callable[..., Any]


@pytest.fixture
def compiled(tmp_path: Path) -> Iterator[Compile]:
    import torch

    torch._dynamo.reset()

    def compile_it(function: Any, **settings: Any) -> Any:
        options = {"cache_dir": str(tmp_path), **settings.pop("options", {})}
        return torch.compile(function, backend=torch_backend, options=options, **settings)

    yield compile_it
    torch._dynamo.reset()


def only_graph() -> CompiledGraph:
    (graph,) = torch_backend.graphs()
    return graph


def test_outputs_are_those_of_pytorch_in_kind_too(compiled: Compile) -> None:
    import torch

    def function(x: Any, ids: Any) -> Any:
        y = x.t() * 2
        return {"y": y, "again": y, "count": x.shape[0], "view": x.view(-1)}, ids + 1, ids > 2

    x, ids = torch.randn(6, 4)[::2], torch.arange(4, dtype=torch.int32)
    x = x.contiguous()
    with torch.no_grad():
        found, expected = compiled(function)(x, ids), function(x, ids)
    assert found[0]["y"] is found[0]["again"]
    assert found[0]["count"] == 3
    assert found[0]["view"].data_ptr() == x.data_ptr()
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    torch.testing.assert_close(found[0]["y"], expected[0]["y"])
    assert only_graph().native == only_graph().operators > 0


def test_inputs_need_not_be_contiguous_and_are_not_copied_where_they_are(
    compiled: Compile,
) -> None:
    import torch

    from vermilion.export.dynamo.program import to_numpy

    x = torch.randn(4, 6)
    assert to_numpy(x).__array_interface__["data"][0] == x.data_ptr()
    with torch.no_grad():
        for view in (x.t(), x[:, ::2], x.expand(2, 4, 6)):
            call = compiled(lambda x: x * 2 + 1)
            torch.testing.assert_close(call(view), view * 2 + 1)


def test_results_of_two_calls_are_two(compiled: Compile) -> None:
    import torch

    call = compiled(lambda x: x + 1)
    with torch.no_grad():
        first = call(torch.zeros(3))
        second = call(torch.ones(3))
    first.add_(10)  # it may be written to
    assert (first.tolist(), second.tolist()) == ([11.0] * 3, [2.0] * 3)


def test_a_break_in_the_graph_makes_two(compiled: Compile) -> None:
    import torch

    def function(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    with torch.no_grad():
        assert compiled(function)(torch.ones(2)).tolist() == [3.0, 3.0]
    assert [graph.number for graph in torch_backend.graphs()] == [0, 1]
    assert all(graph.native == 1 for graph in torch_backend.graphs())


def test_numbers_that_are_sizes_are_left_open(compiled: Compile) -> None:
    import torch

    def function(x: Any, n: int) -> Any:
        return x.reshape(-1, n) * n

    call = compiled(function)
    with torch.no_grad():
        for rows, n in ((2, 2), (3, 3), (4, 3), (3, 3), (7, 3), (5, 2)):
            x = torch.arange(float(rows * n)).reshape(rows, n)
            assert call(x, n).tolist() == function(x, n).tolist()
    # The first has the sizes of the first call; the second has all others.
    assert len(torch_backend.graphs()) == 2
    assert not [graph for graph in torch_backend.graphs() if graph.reason]


def test_numbers_that_operators_take_are_compiled_one_by_one(compiled: Compile) -> None:
    import torch

    def function(x: Any, epsilon: float) -> Any:
        return torch.nn.functional.layer_norm(x, (4,), eps=epsilon)

    call = compiled(function, dynamic=True)
    with torch.no_grad():
        for rows, epsilon in ((3, 0.5), (4, 0.5), (5, 0.25), (6, 0.5), (7, 0.25)):
            x = torch.arange(4.0 * rows).reshape(rows, 4)
            torch.testing.assert_close(call(x, epsilon), function(x, epsilon))
    assert [graph.sizes[-1] for graph in torch_backend.graphs()] == [0.5, 0.25]


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_program_serves_all_sizes(compiled: Compile, dynamic: bool | None) -> None:
    import torch

    import torch_networks as networks

    model = networks.settled(networks.transformer())
    call = compiled(model, dynamic=dynamic)
    with torch.inference_mode():
        for batch, length in ((2, 12), (3, 20), (5, 7), (2, 40), (8, 64), (3, 20)):
            inputs = networks.tokens(length, batch)
            for one, other in zip(call(*inputs), model(*inputs), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    graphs = torch_backend.graphs()
    assert len(graphs) == (1 if dynamic else 2)  # PyTorch first takes sizes for fixed
    assert all(graph.native == graph.operators > 0 for graph in graphs)
    ids, mask = (one for one in graphs[-1].sizes if isinstance(one, tuple))
    assert ids == mask
    assert all(isinstance(size, str) for size in ids)


def test_a_second_process_finds_the_program_of_all_sizes(compiled: Compile) -> None:
    import torch

    for hit, rows in ((False, 3), (True, 5)):
        torch._dynamo.reset()
        with torch.no_grad():
            call = compiled(lambda x: x.view(x.shape[0] * 2, 2) * 3, dynamic=True)
            assert call(torch.ones(rows, 4)).tolist() == [[3.0] * 2] * (2 * rows)
        assert only_graph().cache_hit == hit


def test_an_exporter_that_makes_a_number_of_a_size_is_found_out(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from vermilion.export.dynamo import build

    def function(x: Any) -> Any:
        return x.sum(0) * x.shape[0]

    follows = build.with_sizes_of_tensors
    frozen: list[object] = []

    def freezes(module: Any, sizes: Any) -> Any:
        frozen.append(module)
        return module if len(frozen) == 1 else follows(module, sizes)

    monkeypatch.setattr(build, "with_sizes_of_tensors", freezes)
    call = compiled(function, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 2, 7):
            x = torch.ones(rows, 4)
            torch.testing.assert_close(call(x), function(x))
    assert only_graph().native == only_graph().operators > 0
    # Where every exporter does, sizes are compiled one by one.
    torch._dynamo.reset()
    monkeypatch.setattr(build, "with_sizes_of_tensors", lambda module, sizes: module)
    call = compiled(lambda x: x.sum(0) * x.shape[0] + 1, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5, 2, 3):
            x = torch.ones(rows, 4)
            torch.testing.assert_close(call(x), function(x) + 1)
    assert [graph.sizes[-1] for graph in torch_backend.graphs()] == [(2, 4), (3, 4)]


def test_floats_that_change_are_inputs(compiled: Compile) -> None:
    import torch

    def function(x: Any, ids: Any, scale: float) -> Any:
        return x * scale + 1, ids * scale

    call, x, ids = compiled(function), torch.ones(3), torch.arange(3)
    with torch.no_grad():
        for scale in (0.5, 0.7, 0.9):
            for one, other in zip(call(x, ids, scale), function(x, ids, scale), strict=True):
                torch.testing.assert_close(one, other)
    assert [graph.reason for graph in torch_backend.graphs()] == ["", ""]


def test_where_one_exporter_is_wrong_the_other_is_asked(compiled: Compile) -> None:
    import torch

    # PyTorch 2.13's first writes a sum of no numbers with the dimensions of what is summed.
    with torch.no_grad(), pytest.warns(NotNativeWarning, match="is empty"):
        found = compiled(lambda x: x.sum())(torch.ones(0, 3))
    assert (found.shape, float(found)) == ((), 0.0)
    assert only_graph().reason == ""


def test_a_graph_that_is_not_native_says_so(compiled: Compile) -> None:
    import torch

    with torch.no_grad(), pytest.warns(NotNativeWarning, match="graph 0 of torch.compile: .*0 "):
        found = compiled(lambda x: x * 2)(torch.ones(2, dtype=torch.float64))
    assert (found.dtype, found.tolist()) == (torch.float64, [2.0, 2.0])
    assert only_graph().placement


def test_of_many_sizes_the_first_are_compiled(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(backend, "MAX_SIZES", 2)
    call = compiled(lambda x, n: x * n, dynamic=True)

    def check(n: int) -> None:
        with torch.no_grad():
            assert call(torch.ones(7), n).tolist() == [float(n)] * 7

    check(2)
    check(3)
    with pytest.warns(RunsEagerlyWarning, match="more than 2 sizes"):
        check(4)
    check(5)  # it is said once
    check(2)
    assert [bool(graph.reason) for graph in torch_backend.graphs()] == [False, False, True]


def test_gradients_are_pytorchs_and_inference_is_ours(compiled: Compile) -> None:
    import torch

    layer = torch.nn.Linear(3, 2)
    call = compiled(layer)
    with pytest.warns(RunsEagerlyWarning, match="gradients are wanted"):
        call(torch.ones(1, 3)).sum().backward()
    call(torch.ones(1, 3))  # it is said once
    assert layer.weight.grad.tolist() == [[1.0] * 3] * 2
    with torch.inference_mode():
        torch.testing.assert_close(call(torch.ones(1, 3)), layer(torch.ones(1, 3)))
    eager, native = torch_backend.graphs()
    assert "gradients" in eager.reason
    assert (native.reason, native.native) == ("", 1)


def test_what_cannot_be_compiled_is_run_by_pytorch_with_the_reason(compiled: Compile) -> None:
    import torch

    def writes(x: Any) -> Any:
        x.add_(1)
        return x * 2

    x = torch.zeros(2)
    with torch.no_grad(), pytest.warns(RunsEagerlyWarning, match="it writes into") as heard:
        assert compiled(writes)(x).tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0]  # once
    text = str(heard[0].message)
    assert text.startswith("graph 0 of torch.compile is run by PyTorch: ")
    assert "\nhint: " in text
    # What has to be exported is, and what the compiler says is the reason.
    with torch.no_grad(), pytest.warns(RunsEagerlyWarning, match="cannot run it without numbers"):
        found = compiled(torch.nonzero, fullgraph=True)(torch.eye(2))
    assert found.tolist() == [[0, 0], [1, 1]]


def test_what_pytorch_cannot_export_is_the_reason(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from vermilion.export.convert import TORCHSCRIPT
    from vermilion.export.dynamo import build

    monkeypatch.setattr(build, "EXPORTERS", (((TORCHSCRIPT, 17),),))  # the other takes seconds
    with torch.no_grad(), pytest.warns(RunsEagerlyWarning, match="linalg_svd") as heard:
        found = compiled(lambda x: torch.linalg.svd(x)[1])(torch.eye(2))
    assert found.tolist() == [1.0, 1.0]
    assert "\nhint: rewrite the operation" in str(heard[0].message)


def test_a_program_that_is_not_as_pytorch_says_so_and_is_not_run(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    from vermilion.export.dynamo import build

    exported = build.to_onnx

    def wrong(*arguments: Any) -> Any:
        model = exported(*arguments[:-1])  # by the first exporter, the second time too
        next(node for node in model.graph if node.op_type == "Add").op_type = "Sub"
        return model

    monkeypatch.setattr(build, "to_onnx", wrong)
    with torch.no_grad(), pytest.warns(RunsEagerlyWarning, match=r"dB from PyTorch's"):
        found = compiled(lambda x: x + 3)(torch.ones(2))
    assert found.tolist() == [4.0, 4.0]
    assert not (tmp_path / "torch-graphs").exists()


def test_weights_that_change_are_seen_until_it_is_training(compiled: Compile) -> None:
    import torch

    layer = torch.nn.Linear(3, 2)
    call, x = compiled(layer), torch.ones(1, 3)

    def check() -> None:
        with torch.inference_mode():
            torch.testing.assert_close(call(x), layer(x))

    check()
    layer.load_state_dict({name: torch.randn_like(t) for name, t in layer.state_dict().items()})
    check()
    layer.weight = torch.nn.Parameter(torch.ones(2, 3))
    check()
    layer.weight.data = torch.zeros(2, 3)
    check()
    assert not [graph for graph in torch_backend.graphs() if graph.reason]
    for _ in range(MAX_CHANGES - 3):
        layer.bias.data = torch.randn(2)
        check()
    torch.nn.init.normal_(layer.weight)
    with pytest.warns(RunsEagerlyWarning, match=f"weights changed {MAX_CHANGES + 1} times"):
        check()


def test_a_buffer_that_changes_becomes_an_input(compiled: Compile) -> None:
    import torch

    class Counts(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            return x + self.count

    module = Counts()
    call = compiled(module)
    with torch.no_grad():
        for number in range(4):
            assert call(torch.ones(2)).tolist() == [1.0 + number] * 2
            module.count += 1
    assert len(torch_backend.graphs()) == 2


def test_an_artifact_that_was_pruned_is_compiled_again(compiled: Compile, tmp_path: Path) -> None:
    import torch

    from vermilion.runtime.cache import Cache

    for hit in (False, True, False):
        torch._dynamo.reset()
        with torch.no_grad():
            assert compiled(lambda x: x * 3)(torch.ones(2)).tolist() == [3.0, 3.0]
        assert only_graph().cache_hit == hit
        if hit:
            Cache(tmp_path).forget(only_graph().artifact.name)


def test_one_graph_on_several_threads_is_compiled_once(tmp_path: Path) -> None:
    import torch

    torch_backend.reset()
    module = torch.fx.symbolic_trace(lambda x: (torch.relu(x) * 2,))
    call = torch_backend(module, [torch.ones(2)], options={"cache_dir": str(tmp_path)})
    found: list[list[float]] = []

    def run(value: float) -> None:
        with torch.no_grad():
            found.append(call(torch.full((2,), value))[0].tolist())

    threads = [threading.Thread(target=run, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[2.0 * n] * 2 for n in range(4)]
    assert only_graph().reason == ""


def test_a_model_that_is_gone_leaves_nothing(compiled: Compile) -> None:
    import torch

    layer = torch.nn.Linear(3, 2)
    call = compiled(layer)
    with torch.no_grad():
        call(torch.ones(1, 3))
    weight = weakref.ref(layer.weight)
    del layer, call
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None


def test_options_that_are_none_end_the_call(compiled: Compile) -> None:
    import torch

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="did you mean `threads`"):
        compiled(lambda x: x + 1, options={"thread": 1})(torch.ones(1))
