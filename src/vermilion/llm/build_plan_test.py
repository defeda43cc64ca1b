from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_folders
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm import build_plan
from vermilion.llm.build_plan import BuildRequest, check_room, closer_rounding, plan_build


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    llm_folders.config_file(folder, **llm_folders.SMOLLM2)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_what_smollm2_needs(source: Path, tmp_path: Path) -> None:
    plan = plan_build(BuildRequest(source, tmp_path / "out"))
    # Measured: 90.2 MB written, a peak of 1.9 GB.
    assert 85e6 < plan.output_bytes < 110e6
    assert 1.8e9 < plan.memory_bytes < 2.4e9
    assert plan.warnings == ()
    with pytest.raises(OptionError, match=r"2\.1 GB of memory, 1\.0 GB"):
        check_room(plan, 10**12, 10**9)
    with pytest.raises(OptionError, match="of disk"):
        check_room(plan, 10**6, 10**12)
    check_room(plan, 10**12, 10**12)


def test_a_gguf_is_converted_first_and_needs_more_disk(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(llm_folders.gguf_bytes())
    plan = plan_build(BuildRequest(file, tmp_path / "out"))
    assert plan.is_gguf
    assert plan.disk_bytes == 2 * plan.output_bytes + 4 * plan.architecture.parameters


def test_rounding_so_that_errors_cancel_is_named_and_needs_more_memory(
    source: Path, tmp_path: Path
) -> None:
    plain = BuildRequest(source, tmp_path / "out")
    better = replace(plain, algorithm="gptq")
    assert "--algorithm gptq" in closer_rounding(plain)
    assert closer_rounding(better) == closer_rounding(replace(plain, precision="int8")) == ""
    # Measured: a peak of 2.38 GB.
    assert 2.3e9 < plan_build(better).memory_bytes < 2.6e9
    (source / "config.json").write_text(json.dumps({"model_type": "none that is known"}))
    assert closer_rounding(plain) == ""


def test_a_second_rounding_is_told_as_it_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_plan, "_check_read", lambda _: None)  # of a file of one tensor
    file = tmp_path / "model.gguf"
    as_floats, as_q4_1 = (struct.pack("<QQIQ", 64, 320, number, 0) for number in (0, 3))
    file.write_bytes(llm_folders.gguf_bytes().replace(as_floats, as_q4_1))
    found = {}
    for algorithm in ("default", "gptq"):
        request = BuildRequest(file, tmp_path / "out", algorithm=algorithm)  # type: ignore[arg-type]
        found[algorithm] = " ".join(plan_build(request).warnings)
    assert "35.8 rounded again" in found["default"]
    assert "28.8 rounded again" in found["gptq"]


def test_blocks_that_do_not_divide_are_told(source: Path, tmp_path: Path) -> None:
    plan = plan_build(BuildRequest(source, tmp_path / "out", block=128))
    assert "do not divide 576" in plan.warnings[0]


def test_code_of_the_model_is_never_run(source: Path, tmp_path: Path) -> None:
    assert BuildRequest(source, tmp_path / "out").builder_options()["hf_remote"] == "false"
    (source / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"x": "y.py"}}))
    with pytest.raises(UnsupportedError, match="its own Python code"):
        plan_build(BuildRequest(source, tmp_path / "out"))


def test_zero_points_keep_the_embedding_apart(source: Path, tmp_path: Path) -> None:
    shared = BuildRequest(source, tmp_path / "out")
    apart = BuildRequest(source, tmp_path / "out", is_symmetric=False)
    assert "shared_embeddings" not in shared.builder_options()
    assert apart.builder_options()["shared_embeddings"] == "false"
    assert plan_build(apart).output_bytes > plan_build(shared).output_bytes + 100e6


def test_gptq_adds_zero_points_of_its_own(source: Path, tmp_path: Path) -> None:
    """So the embedding stays the head's weights, and the folder grows by the zero points alone."""
    plain, own = (
        BuildRequest(source, tmp_path / "out", algorithm="gptq", is_symmetric=is_symmetric)
        for is_symmetric in (True, None)
    )
    assert own.has_zero_points
    assert not BuildRequest(source, tmp_path / "out").has_zero_points
    assert own.builder_options() == plain.builder_options()
    sizes = [plan_build(replace(one, mean_bits=4)).output_bytes for one in (plain, own)]
    assert sizes[0] < sizes[1] < 1.05 * sizes[0]
    assert sizes[1] < plan_build(own).output_bytes < 1.4 * sizes[1]
    assert plan_build(replace(own, mean_bits=8)).output_bytes > 1.6 * sizes[1]
    assert replace(own, graph="dml").bits == 4


def test_sources_that_will_not_do(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OptionError, match="no such file or folder"):
        plan_build(BuildRequest(tmp_path / "none", out))
    with pytest.raises(ModelError, match="built already"):
        plan_build(BuildRequest(llm_folders.oga_folder(tmp_path / "oga"), out))
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickles"):
        plan_build(BuildRequest(source, out))
    with pytest.raises(ModelError, match="no GGUF"):
        plan_build(BuildRequest(source / "config.json", out))


def test_an_output_that_is_there_is_left_alone(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there already"):
        plan_build(BuildRequest(source, source))
    with pytest.raises(OptionError, match="no such folder"):
        plan_build(BuildRequest(source, tmp_path / "no" / "out"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "int3"},
        {"graph": "cuda"},
        {"block": 48},
        {"accuracy": 5},
        {"algorithm": "awq"},
        {"precision": "fp16"},
        {"mean_bits": 5},
        {"mean_bits": 3.9, "algorithm": "gptq"},
        {"mean_bits": 8.1, "algorithm": "gptq"},
        {"mean_bits": float("nan"), "algorithm": "gptq"},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any], source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        BuildRequest(source, tmp_path / "out", **wrong)
