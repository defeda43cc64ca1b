"""The page about C tells the truth: its commands run, its programs compile and say something."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

import c_library
import models
from pages import ROOT
from tiny_llama import Tiny, write_folder
from vermilion.clib.library import library, linked_object

pytestmark = pytest.mark.needs("c compiler", "onnxruntime_genai")
_BLOCK = re.compile(r"^```(sh|c|python|cmake)\n([\s\S]*?)^```$", re.MULTILINE)
_NAMED = re.compile(r"/\* (\w+\.c) \*/\n")


def _write_command(folder: Path, name: str, words: tuple[str, ...]) -> None:
    file = folder / name
    file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    file.chmod(0o755)


def test_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "c.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(page)
    kinds = "sh c sh c cmake sh c sh python python"
    assert [kind for kind, _ in blocks] == kinds.split()
    commands = tmp_path / "bin"
    commands.mkdir()
    _write_command(commands, "vermilion", (sys.executable, "-m", "vermilion"))
    # With these, ziglang has made what it links with already, and takes no sanitizer's library.
    _write_command(commands, "cc", (*c_library.host_compiler().words, "-O2", "-s"))
    linked_object()  # once for all tests
    ir.save(models.small_cnn(), tmp_path / "model.onnx")
    write_folder(tmp_path / "small-llm", Tiny(bits=4))
    for kind, text in blocks:
        if kind == "c":
            named = _NAMED.match(text)
            assert named is not None
            (tmp_path / named[1]).write_text(text)
    paths = [str(ROOT / "src"), str(ROOT / "runtime" / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "VERMILION_LIBRARY": str(library()),
    }
    said = []
    for kind, text in blocks:
        command = {"sh": ["bash", "-e", "-c", text], "python": [sys.executable, "-c", text]}
        if kind in command:
            done = subprocess.run(
                command[kind], cwd=tmp_path, env=environment, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
    assert re.search(r"^output: -?\d", said[0], re.MULTILINE)
    assert "libvermilion" in re.sub(r"\s+", "", said[0])  # a long path is folded
    assert re.search(r"^(x86-64-v3|zen4): -?\d", said[1], re.MULTILINE)
    assert re.search(r"(\d+\n){8}$", said[2])
    assert said[4].startswith("[  9  41   7 120 ")
    assert said[4].split()[5:] == [*said[2].split()[-8:-1], said[2].split()[-1] + "]"]
    assert "(1, 10)" in said[5]
    cmake = (tmp_path / "net.cmake").read_text()
    assert "add_library(net::net SHARED IMPORTED)" in cmake
