from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.export import export_model, model
from vermilion.export.module import require_torch

pytestmark = pytest.mark.needs("torch")

SOURCE = """
import dataclasses
import torch
from torch import nn

class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(nn.functional.hardswish(self.norm(self.conv(x)))).flatten(1)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)

    def forward(self, ids, mask=None, *, scale):
        x = self.embed(ids) * scale
        return {"hidden": x, "pooled": [x.mean(1), x.amax(1)], "nothing": None}

class Two(nn.Module):
    def forward(self, first, second):
        return first + second, first - second

@dataclasses.dataclass
class Answer:
    logits: torch.Tensor

class Typed(nn.Module):
    def forward(self, output):
        return Answer(output * 2)

class TakesDictionary(nn.Module):
    def forward(self, batch):
        return batch["x"] + batch.get("y", 0)

class FrozenBranch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x * 3

class GivesNumber(nn.Module):
    def forward(self, x):
        return x.shape[0]

class Unsupported(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(x).real

class Prints(nn.Module):
    def forward(self, x):
        print("hello from forward")
        return torch.relu(x)

class FrozenSize(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]), -1) + torch.zeros(int(x.shape[0]), 1)

class Chunks(nn.Module):
    def forward(self, x):
        first, second, third = x.chunk(3, -1)
        return torch.diff(first * second), third

class Halves(nn.Module):
    def forward(self, image):
        return nn.functional.avg_pool2d(image, 2) + image[..., ::2, ::2].reshape(
            image.shape[0], image.shape[1], image.shape[2] // 2, image.shape[3] // 2)

class Attends(nn.Module):
    # Its sizes go through numbers of Python, which a tracer freezes.

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]

class Encodes(nn.Module):
    # With a mean behind it, PyTorch cannot bring the layer down to opset 17.

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(self.layer(x)).mean(1)

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 8, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0]

class Patches(nn.Module):
    # TorchScript's exporter writes an unfold of an odd slice that no engine opens.
    def __init__(self):
        super().__init__()
        self.layer, self.places = nn.Linear(4, 5), nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        parts = x[:, 3:, :].unfold(dimension=-2, size=4, step=2).transpose(1, 2)
        return self.layer(parts.contiguous()) + self.places

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


def test_an_export_has_fixed_shapes_opset_17_and_agrees_in_evaluation_mode(
    file: Path, tmp_path: Path
) -> None:
    report = export_model(f"{file}:Conv", ["1x3x8x8"], tmp_path / "new" / "m.onnx")
    assert report.agrees
    assert report.agreements[0].sqnr_db > 100.0
    written = onnx.load(report.output)
    onnx.checker.check_model(written, full_check=True)
    assert [(o.domain, o.version) for o in written.opset_import] == [("", 17)]
    assert "Dropout" not in {node.op_type for node in written.graph.node}
    assert [(t.name, t.shape, t.data_type) for t in (*report.inputs, *report.outputs)] == [
        ("input", (1, 3, 8, 8), "float32"),
        ("output", (1, 144), "float32"),
    ]
    assert list((tmp_path / "new").iterdir()) == [report.output]


def test_later_opsets_go_through_the_other_exporter(file: Path, tmp_path: Path) -> None:
    report = export_model(f"{file}:Conv", ["1x3x8x8"], tmp_path / "m.onnx", opset=18)
    assert report.agrees
    assert (report.opset, report.exporter) == (18, "torch.export")
    assert onnx.load(report.output).opset_import[0].version == 18


@pytest.mark.parametrize("opset", [17, 18])
def test_sizes_with_a_name_stay_open_and_are_checked_at_two(
    opset: int, file: Path, tmp_path: Path
) -> None:
    inputs = ["ids:batch=2xlength=4:int64", "scale:1"]
    report = export_model(f"{file}:Encoder", inputs, tmp_path / "m.onnx", opset=opset)
    assert report.agrees, report.notes
    assert not report.notes
    assert report.inputs[0].shape == ("batch", "length")
    session = onnxruntime.InferenceSession(report.output, providers=["CPUExecutionProvider"])
    feeds = {"ids": np.ones((5, 7), np.int64), "scale": np.ones(1, np.float32)}
    assert session.run(["hidden"], feeds)[0].shape == (5, 7, 8)


def test_a_length_behind_a_recurrent_layer_is_declared_open(file: Path, tmp_path: Path) -> None:
    """PyTorch 2.13 declares the length that it was traced with."""
    report = export_model(f"{file}:Tagger", ["x:batch=2xlength=5x6"], tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert report.outputs[0].shape == ("batch", "length", 16)
    wrong = [v.name for v in onnx.load(report.output).graph.value_info if 5 in _sizes(v)]
    assert not wrong, "inner shapes have the traced length"


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


def test_what_one_exporter_writes_wrong_the_other_one_writes(file: Path, tmp_path: Path) -> None:
    report = export_model(f"{file}:Patches", ["1x15x7"], tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert (report.opset, report.exporter) == (17, "torch.export")


def test_sizes_that_python_computes_with_stay_open(file: Path, tmp_path: Path) -> None:
    inputs = ["batch=2xlength=5x8"]
    report = export_model(f"{file}:Attends", inputs, tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert report.inputs[0].shape == ("batch", "length", 8)


def test_what_is_not_right_at_opset_17_has_opset_18(file: Path, tmp_path: Path) -> None:
    """A batch of 1 is traced as one of 2: `torch.export` would make a number of it."""
    report = export_model(f"{file}:Encodes", ["batch=1xlength=5x16"], tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert (report.opset, report.exporter) == (18, "torch.export")
    assert report.inputs[0].shape == ("batch", "length", 16)
    wanted = export_model(f"{file}:Encodes", ["batch=1xlength=5x16"], tmp_path / "n.onnx", opset=17)
    assert (wanted.opset, wanted.agrees) == (17, False)


@pytest.mark.parametrize("shape", ["2x9", "2x8"])
def test_parts_are_written_as_opset_17_has_them(shape: str, file: Path, tmp_path: Path) -> None:
    """TorchScript's exporter has no `diff`, and the other one goes down from a later opset."""
    report = export_model(f"{file}:Chunks", [shape], tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert (report.opset, report.exporter) == (17, "torch.export")


def test_sizes_that_go_in_steps_are_checked_at_twice_of_each(file: Path, tmp_path: Path) -> None:
    inputs = ["batch=2x3xheight=4xwidth=6"]
    report = export_model(f"{file}:Halves", inputs, tmp_path / "m.onnx")
    assert report.agrees, report.notes
    assert report.inputs[0].shape == ("batch", 3, "height", "width")


def test_an_open_size_that_tracing_froze_is_found_out(file: Path, tmp_path: Path) -> None:
    report = export_model(f"{file}:FrozenSize", ["x:batch=2x3"], tmp_path / "m.onnx")
    assert not report.agrees
    assert any("--opset 18" in note for note in report.notes)


def test_inputs_are_matched_by_name_also_keyword_only_ones(file: Path, tmp_path: Path) -> None:
    inputs = ["scale:1", "ids:1x4:int64"]
    report = export_model(f"{file}:Encoder", inputs, tmp_path / "m.onnx")
    assert report.agrees
    assert [tensor.name for tensor in report.inputs] == ["ids", "scale"]
    assert [tensor.name for tensor in report.outputs] == ["hidden", "pooled_0", "pooled_1"]
    session = onnxruntime.InferenceSession(report.output, providers=["CPUExecutionProvider"])
    feeds = {"ids": np.array([[1, 2, 3, 4]]), "scale": np.zeros(1, np.float32)}
    assert not session.run(["hidden"], feeds)[0].any()


@pytest.mark.parametrize(
    ("inputs", "first"),
    [
        (["2", "2"], ["first", "second"]),
        (["second:2", "first:2"], ["first", "second"]),
        (["a:2", "b:2"], ["a", "b"]),
        (["a:2", "2"], ["a", "second"]),
    ],
)
def test_inputs_without_names_take_those_of_the_parameters(
    file: Path, tmp_path: Path, inputs: list[str], first: list[str]
) -> None:
    report = export_model(f"{file}:Two", inputs, tmp_path / "m.onnx")
    assert report.agrees
    assert [tensor.name for tensor in report.inputs] == first
    assert [tensor.name for tensor in report.outputs] == ["output_0", "output_1"]


def test_a_dataclass_and_an_input_called_output_will_do(file: Path, tmp_path: Path) -> None:
    report = export_model(f"{file}:Typed", ["output:2x2"], tmp_path / "m.onnx")
    assert report.agrees
    assert [tensor.name for tensor in report.outputs] == ["logits"]
    report = export_model(f"{file}:Prints", ["output:2x2"], tmp_path / "m.onnx")
    assert [tensor.name for tensor in report.outputs] == ["output_out"]


@pytest.mark.parametrize("inputs", [["x:1x3"], ["x:1x3", "y:1x3"]])
def test_a_forward_that_wants_a_dictionary_is_explained(
    file: Path, tmp_path: Path, inputs: list[str]
) -> None:
    with pytest.raises(OptionError, match=r"ends in a type error .* dictionary") as caught:
        export_model(f"{file}:TakesDictionary", inputs, tmp_path / "m.onnx")
    assert '"x": x' in caught.value.hint


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("Two", ["2"], r"missing a required argument: 'second'"),
        ("Two", ["2", "2", "2"], r"too many positional"),
        ("Encoder", ["1x4:int64"], r"missing a required .*'scale'"),
        ("Conv", ["1x4x8x8"], r"`forward` fails with these inputs \(input:1x4x8x8\)"),
        ("GivesNumber", ["2"], r"gives `int`"),
    ],
)
def test_inputs_that_do_not_fit_are_wrong_use(
    file: Path, tmp_path: Path, name: str, inputs: list[str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        export_model(f"{file}:{name}", inputs, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_a_branch_that_tracing_froze_is_found_out(file: Path, tmp_path: Path) -> None:
    # Some of these inputs have a positive sum, some a negative one: both branches are needed.
    reports = [
        export_model(f"{file}:FrozenBranch", [f"x:{size}"], tmp_path / "m.onnx")
        for size in range(1, 9)
    ]
    assert any(not report.agrees for report in reports)
    assert all("nets.py" in " ".join(report.notes) for report in reports)


def test_what_pytorch_cannot_export_gives_both_reasons_and_leaves_nothing(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"an earlier export")
    with pytest.raises(UnsupportedError, match=r"torchscript: .*; torch\.export: "):
        export_model(f"{file}:Unsupported", ["3x3"], tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == b"an earlier export"
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in tmp_path.iterdir()} <= {"nets.py", "m.onnx", "__pycache__"}


def test_pytorchs_own_warnings_do_not_leak(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for opset in (17, 18):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            export_model(f"{file}:Conv", ["1x3x8x8"], tmp_path / "m.onnx", opset=opset)
        assert [str(warning.message) for warning in heard] == []
    assert capfd.readouterr() == ("", "")


def test_large_weights_go_beside_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "EXTERNAL_DATA_BYTES", 1_000)
    report = export_model(f"{file}:Wide", ["1x64"], tmp_path / "m.onnx")
    assert report.agrees
    assert (tmp_path / "m.onnx").stat().st_size < 2_000
    assert (tmp_path / "m.onnx.data").stat().st_size >= 64 * 64 * 4
    session = onnxruntime.InferenceSession(report.output, providers=["CPUExecutionProvider"])
    assert session.run(None, {"input": np.ones((1, 64), np.float32)})[0].shape == (1, 64)


@pytest.mark.parametrize(("name", "opset"), [("m.onnx", 3), ("m.onnx", 99), ("m.bin", 17)])
def test_outputs_that_make_no_sense_are_refused_before_any_code_runs(
    tmp_path: Path, name: str, opset: int
) -> None:
    with pytest.raises(OptionError):
        export_model("no_such_module:build", ["1"], tmp_path / name, opset=opset)


def test_without_torch_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # what Python itself does for a barred module
    with pytest.raises(DeviceError) as caught:
        require_torch()
    assert caught.value.hint == "pip install 'vermilion[export]'"


def test_the_command_prints_the_report_and_keeps_prints_of_the_user_out_of_it(
    file: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "vermilion", "export", f"{file}:Prints"]
    command += ["--input", "1x4", "-o", "m.onnx", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(model.__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert (report["verb"], report["ok"], report["output"]) == ("export", True, "m.onnx")
    assert report["verification"]["outputs"][0]["name"] == "output"
    assert set(done.stderr.split("\n")) == {"hello from forward", ""}
