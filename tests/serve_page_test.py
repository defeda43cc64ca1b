"""The page on serving: its commands and programs run, against the server that it starts."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from pages import BLOCK, ROOT
from tiny_llama import Tiny, write_folder

pytestmark = pytest.mark.needs("starlette", "uvicorn", "tritonclient", "openai", "tokenizers")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_page_on_serving(tmp_path: Path) -> None:
    write_folder(tmp_path / "chat-model", Tiny(bits=4))
    port = free_port()
    environment = {
        **os.environ,
        "VERMILION_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    vermilion = [sys.executable, "-m", "vermilion"]
    server: subprocess.Popen[bytes] | None = None
    log = tmp_path / "log"
    ran = 0
    try:
        for kind, _, block in BLOCK.findall((ROOT / "docs" / "serve.md").read_text("utf-8")):
            text = block.replace("8000", str(port))
            if kind == "python":
                words = [sys.executable, "-c", text]
                run(words, tmp_path, environment)
                ran += 1
                continue
            for line in text.replace("\n  ", " ").splitlines():
                ran += 1
                command = line.replace("vermilion", " ".join(vermilion), 1)
                if line.startswith("vermilion serve"):
                    with log.open("w") as file:
                        words = [*vermilion, *line.split()[1:]]
                        server = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=file)
                    wait_until_ready(port, server)
                elif line.startswith("vermilion") or shutil.which(line.split()[0]):
                    run(["sh", "-c", command], tmp_path, environment)
        assert ran >= 8
        assert server is not None
        server.send_signal(signal.SIGTERM)
        code, told = server.wait(timeout=60), log.read_text()
        assert code == 0, told
        assert '"event": "ready"' in told
        assert "Traceback" not in told
    finally:
        if server is not None and server.poll() is None:
            server.kill()
            server.wait()


def run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert '"error"' not in done.stdout, (words, done.stdout)


def wait_until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        assert server.poll() is None, "it has ended"
        try:
            with urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.05)
    raise AssertionError("it is not ready")


def test_the_container_and_the_unit_name_options_that_there_are() -> None:
    from vermilion.cli import load_verb

    parameters = inspect.signature(load_verb("serve")).parameters  # type: ignore[arg-type]
    known = {f"--{name.replace('_', '-')}" for name in parameters}
    for name in ("Dockerfile", "vermilion.service"):
        text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
        lines = [s for s in text.splitlines() if s.startswith(("CMD", "ExecStart"))]
        words = lines[-1].replace('"', " ").replace(",", " ").split()
        options = [word for word in words if word.startswith("--")]
        assert len(options) >= 2
        for option in options:
            assert option in known, (name, option)


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("this system has no systemd-analyze")
    unit = tmp_path / "vermilion.service"
    text = (ROOT / "deploy" / "vermilion.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/vermilion/bin/vermilion", sys.executable))
    done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True)
    assert "vermilion.service:" not in done.stderr, done.stderr


def has_no_buildx(program: str) -> bool:
    done = subprocess.run([program, "buildx", "version"], capture_output=True)
    return done.returncode != 0


def test_the_image_is_one_that_docker_takes() -> None:
    program = shutil.which("docker")
    if program is None or has_no_buildx(program):
        pytest.skip("this system has no docker with buildx")
    words = [
        program,
        "buildx",
        "build",
        "--check",
        "-f",
        str(ROOT / "deploy" / "Dockerfile"),
        str(ROOT),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
