from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from commands import command_line
from vermilion import compile_model
from vermilion.errors import ArtifactError, OptionError
from vermilion.ir.execute import open_session, run_session
from vermilion.runtime.buckets import BucketSession

MASKED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, length, 8] x, float[batch, length, 1] mask) => (float[batch, half, 4] y) {
    a = MatMul (x, w)
    b = Mul (a, mask)
    t = Transpose<perm=[0, 2, 1]> (b)
    p = AveragePool<kernel_shape=[2], strides=[2]> (t)
    y = Transpose<perm=[0, 2, 1]> (p)
}"""
UNMASKED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, length, 8] x) => (float[batch, length, 8] y) { y = Softmax<axis=1> (x) }"""


def model(text: str = MASKED) -> ir.Model:
    proto = onnx.parser.parse_model(text)
    if "MatMul" in text:
        weight = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return ir.from_proto(proto)


def programs(
    folder: Path, lengths: Sequence[int] = (4, 8, 16), text: str = MASKED, batch: int = 2
) -> list[Path]:
    files = [folder / f"{length}.rai" for length in lengths]
    for length, file in zip(lengths, files, strict=True):
        dims = {"batch": batch, "length": length}
        compile_model(model(text), dims=dims, cache_dir=folder / "cache", output=file)
    return files


def request(length: int, batch: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(length)
    x = random.standard_normal((batch, length, 8), dtype=np.float32)
    return {"x": x, "mask": np.ones((batch, length, 1), np.float32)}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return programs(tmp_path_factory.mktemp("three"))


@pytest.mark.parametrize(
    ("length", "program", "is_padded"),
    [(8, 1, False), (6, 1, True), (10, 2, True), (2, 0, True), (16, 2, False)],
)
def test_each_request_gets_the_smallest_program_and_its_own_numbers(
    three: list[Path], length: int, program: int, is_padded: bool
) -> None:
    session = BucketSession(three, pad=0.0)
    inputs = request(length)
    assert session.choose(inputs) == (program, is_padded)
    found = session.run(None, inputs)["y"]
    expected = run_session(open_session(model()), inputs)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert session.runs_on(program)
    session.close()


def test_without_leave_nothing_is_padded(three: list[Path]) -> None:
    session = BucketSession(three)
    assert session.run(["y"], request(8))["y"].shape == (2, 4, 4)
    with pytest.raises(
        OptionError, match=r"no program is for x \[2, 6, 8\]|no program is for"
    ) as e:
        session.run(None, request(6))
    assert "allow padding" in e.value.hint
    padding = BucketSession(three, pad=0.0)
    with pytest.raises(OptionError, match="no program has room"):
        padding.run(None, request(8, batch=1))  # all programs have a batch of 2
    with pytest.raises(OptionError, match="9 of `x` is no multiple of 2"):
        padding.run(None, request(9))
    with pytest.raises(OptionError, match="no program has room") as e:
        padding.run(None, request(17))
    assert "compile one for this size" in e.value.hint


def test_padding_that_changes_the_answer_is_refused(tmp_path: Path) -> None:
    files = programs(tmp_path, (4, 8), UNMASKED)
    x = {"x": np.zeros((2, 6, 8), np.float32)}
    with pytest.raises(OptionError, match="padding changes the output `y`: SQNR"):
        BucketSession(files, pad=0.0).run(None, x)
    # e^(-10000) takes no part: with this value the same model may be padded.
    found = BucketSession(files, pad={"x": -10000.0}).run(None, x)["y"]
    np.testing.assert_allclose(found, np.full((2, 6, 8), 1 / 6), atol=1e-6)


def test_one_program_cannot_say_what_padding_does(tmp_path: Path) -> None:
    (file,) = programs(tmp_path, (8,))
    with pytest.raises(OptionError, match="no program has room"):
        BucketSession([file], pad=0.0).run(None, request(6))


def test_programs_of_two_models_are_refused(three: list[Path], tmp_path: Path) -> None:
    (other,) = programs(tmp_path, (4,), UNMASKED)
    with pytest.raises(ArtifactError, match="not of one model"):
        BucketSession([three[0], other])
    with pytest.raises(OptionError, match="no program is named"):
        BucketSession([])


def test_open_sizes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "open.rai"
    compile_model(model(), dims={"batch": 1}, cache_dir=tmp_path / "cache", output=file)
    with pytest.raises(OptionError, match="has dynamic sizes") as caught:
        BucketSession([file])
    assert "--dim" in caught.value.hint


def test_the_command(
    three: list[Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    np.savez(tmp_path / "in.npz", **request(6))
    words = ("run", three[0], "--bucket", three[1], "--bucket", three[2])
    words = (*words, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    refused = vermilion(*words)
    assert refused.code == 2
    assert "allow padding" in refused.err
    done = vermilion(*words, "--pad", "0", "--json")
    assert done.code == 0, done.err
    assert done.data["padded"] is True
    assert done.data["model"] == str(three[1])
    expected = run_session(open_session(model()), request(6))["y"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], expected, atol=1e-5)
    shown = vermilion(*words, "--pad", "x=0", "--pad", "mask=0")
    assert "(padded, and cut)" in shown.words
    for wrong in (("--pad", "much"), ("--pad", "0", "--pad", "1")):
        assert vermilion(*words, *wrong).code == 2
    assert "inputs say which" in vermilion("run", three[0], "--bucket", three[1]).err
