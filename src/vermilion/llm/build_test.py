"""The whole path on a model of random weights: built, read back, run, measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import llm_sources
from vermilion.errors import DeviceError, ModelError, OptionError, UnsupportedError
from vermilion.llm.build import build
from vermilion.llm.build_plan import BuildRequest, plan_build
from vermilion.llm.engine.description import Description, Product
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.generate import Sampling, generate
from vermilion.llm.list_operators import Wanted, list_operators
from vermilion.llm.open_model import open_model, read_model_config
from vermilion.llm.perplexity import position_logits
from vermilion.llm.rounding.compensate_folder import compensate_folder
from vermilion.llm.rounding.forward import Forward, own_product
from vermilion.llm.rounding.write_graph import BuiltGraph
from vermilion.llm.search import log_softmax
from vermilion.llm.speed import SpeedRequest, compare_speed
from vermilion.llm.speed_engines import SpeedSetting
from vermilion.llm.stock_engine import EngineOptions

pytestmark = [pytest.mark.needs("onnxruntime_genai", "transformers", "torch"), pytest.mark.slow]

ONE_THREAD = EngineOptions(threads=1)
GREEDY = Sampling(new_tokens=8)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llm_sources.random_model(tmp_path_factory.mktemp("llm") / "source")


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    stages: list[tuple[str, int, int]] = []
    built = build(
        plan_build(BuildRequest(source, source.with_name("oga"), prune_head=True)),
        lambda stage, done, total: stages.append((stage, done, total)),
    )
    assert ("building", 2, 2) in stages
    assert stages[-1][0] == "loading"
    assert built.size_bytes > 10_000
    return built.folder


def test_only_the_finished_folder_is_left(folder: Path) -> None:
    assert sorted(p.name for p in folder.parent.iterdir()) == ["oga", "source"]
    assert (folder / "build.log").stat().st_size > 0


def test_the_graph_has_the_operators_that_the_source_announced(source: Path, folder: Path) -> None:
    wanted = Wanted(prompt=16)
    announced, built = list_operators(source, wanted), list_operators(folder, wanted)
    assert {row.operator.key for row in built.rows} == {row.operator.key for row in announced.rows}


@pytest.mark.parametrize(("family", "graph"), [("qwen3", "cpu"), ("gemma2", "dml")])
def test_other_families_have_theirs(family: str, graph: Any, tmp_path: Path) -> None:
    source = llm_sources.random_model(tmp_path / "source", family)
    announced = list_operators(source, Wanted(prompt=16, graph=graph))
    built = build(plan_build(BuildRequest(source, tmp_path / "oga", graph=graph))).operators
    both = [{(row.operator.key, row.operator.count) for row in e.rows} for e in (announced, built)]
    assert both[0] == both[1]


@pytest.mark.parametrize("is_symmetric", [True, None])
def test_weights_are_rounded_for_a_text_and_the_folder_is_held_against_its_source(
    is_symmetric: bool | None, source: Path, folder: Path, tmp_path: Path
) -> None:
    """With zero points, what tokens begin with is still the head's weights in 4 bits."""
    text = tmp_path / "text.txt"
    text.write_text("the small model reads a short text about the weather " * 40)
    request = BuildRequest(
        source, tmp_path / "oga", algorithm="gptq", calibration=text, is_checked=True,
        is_symmetric=is_symmetric, mean_bits=4,
    )  # fmt: skip
    built = build(plan_build(request))
    assert built.compensated is not None
    assert built.compensated.rounded == built.compensated.products > 0
    assert built.compensated.text == "the given text"
    assert built.checked is not None
    assert built.checked.divergence is not None
    assert built.checked.divergence < 1e-2
    own, plain = (
        BuiltGraph(one / read_genai_config(one).model_files()[0]) for one in (built.folder, folder)
    )
    with_zeros = [one.name for one in own.nodes() if one.zeros is not None]
    shared = [one.name for one in own.nodes() if own.is_embedding(one)]
    assert shared == [one.name for one in plain.nodes() if plain.is_embedding(one)]
    assert len(shared) == 1
    assert not set(with_zeros) & set(shared)
    assert len(with_zeros) == (0 if is_symmetric else built.compensated.products - 1)


def test_what_loses_most_is_kept_in_8_bits_and_nothing_is_left_of_its_4(
    source: Path, tmp_path: Path
) -> None:
    """A copy for each mean: the head among those of 8 bits takes the embedding along."""
    text, apart, sizes = "the small model reads a short text about the weather " * 40, [], []
    folder = build(plan_build(BuildRequest(source, tmp_path / "whole"))).folder
    config = read_model_config(source)
    assert config.source is not None
    tokens = config.source.tokenizer(tmp_path / "cache").encode(text)[:64]
    exact = log_softmax(float_logits(config.source.describe(), tokens))
    for bits in (4, 6, 8):
        copy = Path(shutil.copytree(folder, tmp_path / str(bits)))
        model = copy / read_genai_config(copy).model_files()[0]
        done = compensate_folder(source, model, is_symmetric=False, mean_bits=bits, text=text)
        graph = onnx.load(model, load_external_data=False).graph
        wide = [one.name for one in graph.node if _bits(one, "MatMulNBits") == 8]
        assert len(wide) == len(done.in_bytes) == {4: 0, 8: done.products}.get(bits, len(wide))
        assert (0 < len(wide) < done.products) == (bits == 6)
        embedding = {_bits(one, "GatherBlockQuantized") for one in graph.node} - {0}
        assert embedding == {8 if any("lm_head" in name for name in wide) else 4}
        external = [{e.key: e.value for e in t.external_data} for t in graph.initializer]
        used = sum(int(one["length"]) for one in external if one)
        data = model.with_name(f"{model.name}.data")
        assert used <= data.stat().st_size < used + 4096 * len(external)
        sizes.append(used)
        now = log_softmax(position_logits(open_model(copy, ONE_THREAD), tokens))
        apart.append(float((np.exp(exact) * (exact - now)).sum(axis=1).mean()))
    assert sizes == sorted(sizes)
    assert max(apart[1:]) < apart[0] / 20  # what is left is the activations' 8 bits


def float_logits(description: Description, tokens: list[int]) -> Any:
    """Return the logits of a description of floats after each token."""
    seen = {}

    def multiply(product: Product, read: Any) -> Any:
        seen[product.node] = own_product(product, read)
        return seen[product.node]

    Forward(description, np.array([tokens])).run(multiply)
    return seen[description.head.node].numpy()


def _bits(node: Any, kind: str) -> int:
    """Return the bits of a node's codes, 0 for one of another kind."""
    if node.op_type != kind:
        return 0
    return next((one.i for one in node.attribute if one.name == "bits"), 4)


def test_without_a_text_they_are_rounded_for_one_that_the_model_writes(
    source: Path, folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "oga"))
    model = copy / read_genai_config(copy).model_files()[0]
    done = compensate_folder(source, model, is_symmetric=True, cache=tmp_path / "cache")
    assert done.text == "the model's own text"
    assert done.rounded == done.products > 0
    assert done.tokens % 128 == 0
    assert generate(copy, "the small model", GREEDY, ONE_THREAD).new_tokens >= 1


def test_text_comes_in_pieces_and_is_the_same_again(folder: Path) -> None:
    pieces: list[str] = []
    made = generate(folder, "the small model", GREEDY, ONE_THREAD, on_text=pieces.append)
    assert "".join(pieces) == made.text
    assert 1 <= made.new_tokens <= 8
    assert made.prefill_tokens_per_s > 0
    assert generate(folder, "the small model", GREEDY, ONE_THREAD).text == made.text


def test_a_prompt_over_the_context(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"context is 128"):
        generate(folder, "the weather " * 100, GREEDY, ONE_THREAD)
    with pytest.raises(OptionError, match=r"context is 128"):
        compare_speed(SpeedRequest((120,), 64), SpeedSetting(folder))
    with pytest.raises(OptionError, match="empty"):
        generate(folder, "", GREEDY, ONE_THREAD)


def test_speeds_are_of_the_lengths_asked_for(folder: Path) -> None:
    measured = compare_speed(SpeedRequest((32, 8), 4, repeat=2), SpeedSetting(folder))
    [ours] = measured.engines
    assert [one.prompt_tokens for one in ours.results] == [8, 32]
    assert all(one.decode_tokens_per_s > 0 for one in ours.results)


def test_a_provider_that_is_not_here_is_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "oga"))
    data = json.loads((copy / "genai_config.json").read_text())
    entries = [{"MIGraphX": {"device_id": "0"}}]
    data["model"]["decoder"]["session_options"]["provider_options"] = entries
    (copy / "genai_config.json").write_text(json.dumps(data))
    with pytest.raises(DeviceError, match="MIGraphX") as caught:
        generate(copy, "the", GREEDY, ONE_THREAD)
    assert "--cpu" in caught.value.hint
    on_cpu = EngineOptions(threads=1, on_cpu=True)
    assert generate(copy, "the", GREEDY, on_cpu).new_tokens >= 1


def test_a_damaged_model_is_one_error(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "oga"))
    model = copy / read_genai_config(copy).model_files()[0]
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cut short"):
        generate(copy, "the", GREEDY, ONE_THREAD)


def test_a_build_that_fails_leaves_its_log_alone(source: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(source, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UnsupportedError, match=r"building failed: .*Error") as caught:
        build(plan_build(BuildRequest(broken, tmp_path / "out")))
    assert "out.build.log" in caught.value.hint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "out.build.log"]
