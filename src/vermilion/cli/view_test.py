from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import models
from commands import Command, command_line, wide_enough


@pytest.fixture
def vermilion(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    ir.save(models.small_cnn(bn=True), tmp_path / "a.onnx")
    ir.save(models.small_cnn(), tmp_path / "b.onnx")
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_a_page_of_a_model(vermilion: Command, tmp_path: Path) -> None:
    done = vermilion("view", "b.onnx", "--target", "strix")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("b.html: ")
    assert "b.onnx: 8 nodes" in done.out
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")


def test_a_page_of_two_says_what_differs(vermilion: Command, tmp_path: Path) -> None:
    done = vermilion("view", "a.onnx", "b.onnx", "-o", "pages/diff.html")
    assert "8 nodes match; 2 differences" in done.out
    assert done.out.count("fused: Conv + BatchNormalization → Conv") == 2
    assert wide_enough(done.out)
    data = vermilion("view", "a.onnx", "b.onnx", "-o", "pages/diff.html", "--json").data
    assert data["difference"]["counts"] == {"fused": 2}
    assert data["nodes"] == [10, 8]
    assert data["bytes"] == (tmp_path / "pages" / "diff.html").stat().st_size


def test_what_verbs_print_is_read_again(vermilion: Command, tmp_path: Path) -> None:
    for verb, *rest in (("inspect", "b.onnx", "-t", "strix"), ("compare", "b.onnx", "b.onnx"),
                        ("compile", "b.onnx")):  # fmt: skip
        done = vermilion(verb, *rest, "--json")
        (tmp_path / f"{verb}.json").write_text(done.out, encoding="utf-8")
    names = ("inspect.json", "compare.json", "compile.json")
    data = vermilion("view", "b.onnx", *names, "--json").data
    assert data["page"] == "b.html"
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "strix (inspect.json)" in page
    assert "(compile.json)" in page
    assert vermilion("view", "inspect.json").code == 0  # the model is found by its path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("view",), "Missing argument"),
        (("view", "no.onnx"), "no such model"),
        (("view", "b.onnx", "-o", "page.pdf"), "does not end in .html"),
        (("view", "b.onnx", "--target", "stirx"), "did you mean `strix`?"),
        (("view", "b.onnx", "--target", "zen2"), "not among the targets of the page"),
    ],
)
def test_wrong_use(vermilion: Command, words: tuple[str, ...], message: str) -> None:
    done = vermilion(*words)
    assert done.code == 2
    assert message in done.err
