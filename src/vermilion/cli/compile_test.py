from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from commands import Command, wide_enough
from models import Net, conv, small_cnn


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(small_cnn(bn=True), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a model of which one operator is supported nowhere but on the CPU."""
    net = Net("mixed", seed=7)
    x = net.op("Softplus", net.input("input", (1, 8, 16, 16)), name="odd")
    net.output(conv(net, x, "conv", (8, 16), 3), "output", (1, 16, 16, 16))
    ir.save(net.model(), tmp_path / "mixed.onnx")
    return tmp_path / "mixed.onnx"


SUMMARY_KEYS = {
    "operators",
    "gops",
    "supported_operators",
    "supported_gops",
    "offloaded_operators",
    "offloaded_gops",
    "subgraphs_supported",
    "subgraphs_offloaded",
    "fallback",
    "subgraphs",
}


def test_the_keys_that_others_rely_on(vermilion: Command, mixed: Path, tmp_path: Path) -> None:
    data = vermilion("compile", mixed, "--target", "strix", "--json").data
    assert data["verb"] == "compile"
    assert Path(data["artifact"]) == tmp_path / "cache" / data["cache_key"]
    assert Path(data["cache_dir"]) == tmp_path / "cache"
    assert (data["cache_hit"], data["target"]) == (False, "strix")
    assert data["digest"].startswith(data["cache_key"])
    assert data["seconds"] > 0
    summary = data["summary"]
    assert set(summary) >= SUMMARY_KEYS
    assert set(summary["fallback"]) == {
        "compile_error",
        "below_gops_threshold",
        "above_max_subgraphs",
    }
    assert set(summary["subgraphs"][0]) >= {"name", "type", "operators", "gops", "ops"}
    assert [(row["op_type"], row["device"]) for row in data["nodes"]] == [
        ("Softplus", "cpu"),
        ("Conv", "npu"),
    ]
    assert data["nodes"][0]["reason"]
    assert data["nodes"][0]["hint"]
    (output,) = data["verification"]["outputs"]
    assert set(output) >= {"name", "cosine", "sqnr_db", "max_abs_error"}
    assert "arithmetic runs on the CPU" in data["execution"]
    again = vermilion("compile", mixed, "--target", "strix", "--json").data
    assert (again["cache_hit"], again["summary"]) == (True, summary)


def test_three_columns_and_the_reason_for_people(vermilion: Command, mixed: Path) -> None:
    done = vermilion("compile", mixed, "--target", "strix")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("compiled for strix (Strix Point and Strix Halo NPU (XDNA 2)) in ")
    assert "model supported offloaded ran" in done.words
    assert "operators 2 1 (50.0%) 1 (50.0%) CPU, modelled" in done.words
    assert "proven output output: SQNR" in done.words
    assert "3 samples, modelled in bf16" in done.words
    assert "no latency is modelled: it has" in done.words
    assert "1 `Softplus` is not supported in bf16 by strix" in done.words
    assert wide_enough(done.out)
    again = vermilion("compile", mixed, "--target", "strix")
    assert again.out.startswith("found in the cache for strix")


def test_every_node_where_it_is_asked_for(vermilion: Command, mixed: Path) -> None:
    out = vermilion("compile", mixed, "--target", "strix", "--nodes").words
    assert "node operator device part reason" in out
    assert "odd Softplus cpu cpu_par_0 `Softplus` is not supported" in out
    assert "conv/Conv Conv npu vaiml_par_0" in out


def test_the_cpu_is_no_model(vermilion: Command, model: Path) -> None:
    out = vermilion("compile", model).out
    assert "modelled" not in out
    assert "every node is compiled for the CPU" in out


def test_what_ran_on_the_cpu_because_nothing_was_offloaded_is_not_modelled(
    vermilion: Command, model: Path
) -> None:
    done = vermilion("compile", model, "--target", "phoenix")
    assert done.code == 0
    assert "modelled" not in done.out
    assert "0 (0.0%) CPU" in done.words
    assert "phoenix takes a8w8, xint8; this model is fp32" in done.words
    assert "vermilion quantize MODEL" in done.words


def test_a_target_that_gets_nothing_is_warned_about(vermilion: Command, model: Path) -> None:
    done = vermilion("compile", model, "--target", "phoenix", "--json")
    assert done.code == 0
    (warning,) = done.data["warnings"]
    assert warning == done.data["placement"]
    assert warning.startswith("0 of ")
    assert "operators native on phoenix; " in warning
    assert "vermilion quantize MODEL" in warning


@pytest.mark.parametrize("gate", ["operators=80%", "gops=100%"])
def test_a_gate_that_is_not_met_prints_all_that_was_found_out(
    vermilion: Command, mixed: Path, tmp_path: Path, gate: str
) -> None:
    words = ("compile", mixed, "--target", "strix", "-o", tmp_path / "m.rai", "--min-offload", gate)
    done = vermilion(*words)
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert "were asked for (--min-offload)" in done.err
    assert "1 `Softplus` is not supported in bf16 by strix" in done.words
    assert "operators 2 1 (50.0%) 1 (50.0%)" in done.words
    told = vermilion(*words, "--json")
    data = told.data
    assert told.code == 1
    assert "were asked for" in data["error"]["message"]
    assert [row["device"] for row in data["nodes"]] == ["cpu", "npu"]
    assert data["summary"]["offloaded_operators"] == 1
    assert data["placement"].startswith("1 of 2 operators native on strix (modelled); 1 in ONNX")
    assert not (tmp_path / "m.rai").exists()
    assert Path(data["artifact"]).is_dir()  # it is in the cache, for who wants to look


def test_one_file(vermilion: Command, model: Path, tmp_path: Path) -> None:
    data = vermilion("compile", model, "-o", tmp_path / "m.rai", "--json").data
    assert data["artifact"] == str(tmp_path / "m.rai")
    assert (tmp_path / "m.rai").is_file()


def test_a_name_that_held_another_model_says_so(
    vermilion: Command, model: Path, mixed: Path
) -> None:
    assert vermilion("compile", model, "--cache-key", "mine").err == ""
    done = vermilion("compile", mixed, "--cache-key", "mine")
    assert done.code == 0
    assert done.err == "warning: compiled again: key `mine` held another model\n"
    data = vermilion("compile", model, "--cache-key", "mine", "--json").data
    assert data["warnings"] == ["compiled again: key `mine` held another model"]


def test_open_dimensions_get_the_option_that_binds_them(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(batch="batch"), tmp_path / "open.onnx")
    out = vermilion("compile", tmp_path / "open.onnx", "--target", "strix").words
    assert "strix needs fixed shapes; batch is dynamic" in out
    assert "--dim batch=1" in out
    bound = vermilion("compile", tmp_path / "open.onnx", "--target", "strix", "--dim", "batch=1")
    assert "every node is placed on the NPU" in bound.out


def test_a_chip_that_nothing_compiles_for(
    vermilion: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vermilion.backends.iree.toolchain.PACKAGES", ("no-such-compiler",))
    done = vermilion("compile", model, "--target", "gfx942")
    assert done.code == 1
    assert "nothing here compiles for gfx942" in done.err
    assert "hint: pip install 'vermilion[gpu]'" in done.err


@pytest.mark.needs("iree")
def test_float16_for_a_gpu(vermilion: Command, model: Path) -> None:
    done = vermilion("compile", model, "--target", "gfx1100", "--precision", "fp16", "--json")
    assert (done.code, done.data["offload_is"]) in ((0, "modelled"), (0, "ran"))
    assert {row["gpu"] for row in done.data["machine_code"]} == {"gfx1100"}
    assert sum(row["matrix_instructions"] for row in done.data["machine_code"]) > 0
    shown = vermilion("compile", model, "--target", "gfx1100", "--precision", "fp16")
    assert "instructions KiB registers that spill scratch gfx1100" in shown.words
    assert wide_enough(shown.out)
    wrong = vermilion("compile", model, "--target", "gfx1100", "--precision", "int8")
    assert wrong.code == 2
    assert "fp32, fp16" in wrong.err


RESHAPED = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4] x, int64[1] n) => (float[k] y) {
  w = Expand (x, n) d = Mod (n, n) e = Div (n, d) y = Expand (w, e)
}"""


def test_a_proof_can_be_required_and_helped_with_a_sample(
    vermilion: Command, mixed: Path, tmp_path: Path
) -> None:
    assert vermilion("compile", mixed, "--require-proof").code == 0
    path = tmp_path / "none.onnx"
    onnx.save(onnx.parser.parse_model(RESHAPED), path)
    done = vermilion("compile", path)
    assert done.code == 0
    assert "not proven output y: none of 16 samples is accepted" in done.words
    done = vermilion("compile", path, "--require-proof")
    assert done.code == 1
    assert "`y` is not proven" in done.err
    assert "hint: give a sample that the model takes (`--input`)" in done.err
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, input=np.zeros((1, 2), np.float32))
    done = vermilion("compile", mixed, "--input", wrong)
    assert done.code == 2
    assert "the model does not run on the given inputs" in done.err
