"""The whole path on a model of random weights: built, read back, run, measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import llm_sources
from vermilion.errors import DeviceError, ModelError, OptionError, UnsupportedError
from vermilion.llm.build import build
from vermilion.llm.build_plan import BuildRequest, plan_build
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.generate import Sampling, generate
from vermilion.llm.list_operators import Wanted, list_operators
from vermilion.llm.rounding.compensate_folder import compensate_folder
from vermilion.llm.rounding.write_graph import BuiltGraph
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
        is_symmetric=is_symmetric,
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
