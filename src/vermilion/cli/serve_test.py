"""`vermilion serve` and `vermilion top`: what is wrong is told before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Command, command_line

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client")


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.onnx",), "there is no such model or folder"),
        (("m.onnx", "--load", "some"), "`--load some`"),
        (("m.onnx", "--max-queue", "0"), "`--max-queue` is 0"),
        (("m.onnx", "--port", "70000"), "no port 70000"),
        (("m.onnx", "--tls-cert", "a"), "come together"),
        (("m.onnx", "--log", "some"), "`--log some`"),
        (("m.onnx", "--keys", "m.onnx"), "holds no key"),
        (("m.onnx", "--engine", "some"), "no engine is called `some`"),
        (("m.onnx", "--address", "a:1"), "only Ray has an address"),
        (("m.onnx", "--replicas", "2"), "only Ray has replicas"),
        (("m.onnx", "--engine", "ray"), "all machines of a cluster listen at one port"),
        (("m.onnx", "--engine", "ray", "--port", "8000", "--replicas", "2:1"), "`--replicas 2:1`"),
        (("m.onnx", "--engine", "ray", "--port", "8000", "--replicas", "a"), "`--replicas a`"),
        (("m.onnx", "--engine", "ray", "--port", "8000", "--load", "none"), "load all of their"),
    ],
)
def test_wrong_use(
    words: tuple[str, ...], told: str, run: Command, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(b"")
    done = run("serve", *words, "--port", "0") if "--port" not in words else run("serve", *words)
    assert (done.code, told in done.err) == (2, True), done.err


def test_top_without_a_server(run: Command) -> None:
    done = run("top", "http://127.0.0.1:9", "--json")
    assert done.code == 1
    assert "no server answers" in done.data["error"]["message"]
    assert run("top", "nowhere").code == 2
