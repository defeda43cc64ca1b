"""The DLLs for Windows, cross-compiled and run by wine: the bits of the session."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import c_library
from c_runtime_test import CASES
from model_wheels import wheel_folder
from vermilion.api import compile_model
from vermilion.clib.build import INCLUDE, PLUGIN_FILES, build_plugin, compiler
from vermilion.clib.library import library
from vermilion.version import VERSION

# Of the first build: ziglang makes Windows' C library, minutes of a processor. Programs are built
# without symbols, as the DLL is: with them, it would make the library a second time.
pytestmark = [pytest.mark.long, pytest.mark.needs("ziglang")]


def wine() -> str:
    """Return wine's 64 bits; Debian's package has it beside its other files alone."""
    found = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine")
    if found is None:
        pytest.skip("this system has no wine64")
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, with the DLL beside it."""
    wine()
    folder = tmp_path_factory.mktemp("windows")
    shutil.copy(library("windows"), folder / "vermilion.dll")
    source = str(c_library.PROGRAMS / "portable.c")
    words = ["-std=c11", "-O2", "-s", f"-I{INCLUDE}", source, str(folder / "vermilion.dll")]
    compiler("windows").run("windows", [*words, "-o", str(folder / "portable.exe")])
    return folder / "portable.exe"


@pytest.mark.parametrize("name", ["cnn", "large", "int8", "cnn-bf16", "lookup", "pictures"])
def test_the_bits_are_those_of_the_session(name: str, program: Path, tmp_path: Path) -> None:
    (case,) = [one for one in CASES if one.name == name]
    model = tmp_path / "m.rai"
    compile_model(case.make(), precision=case.precision, cache_dir=tmp_path / "c", output=model)
    for feeds in case.feeds[:2]:
        words = []
        for number, array in enumerate(feeds.values()):
            (tmp_path / f"in{number}.bin").write_bytes(array.tobytes())
            words.append(f"in{number}.bin:{'x'.join(map(str, np.shape(array)))}")
        done = subprocess.run(
            [wine(), str(program), "m.rai", *words], cwd=tmp_path, capture_output=True,
            text=True, check=False, env={**os.environ, "VERMILION_TRUST": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        wanted = c_library.wanted(model, feeds)
        assert c_library.same_bits(c_library.written(tmp_path, wanted), wanted)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program on ONNX Runtime's DLL, with that and the plugin's beside it."""
    wine()
    folder = tmp_path_factory.mktemp("plugin")
    for file in (wheel_folder("onnxruntime") / "onnxruntime" / "capi").glob("*.dll"):
        shutil.copy(file, folder)
    build_plugin(folder / PLUGIN_FILES["windows"], system="windows", version=VERSION)
    source, runtime = c_library.PROGRAMS / "plugin.c", folder / "onnxruntime.dll"
    words = ["-std=c11", "-O2", "-s", "-municode", str(source), str(runtime)]
    compiler("windows").run("windows", [*words, "-o", str(folder / "plugin.exe")])
    return folder / "plugin.exe"


# Each kind of model, and of the first both ways to hold it: what is held are the same bytes.
@pytest.mark.parametrize(
    ("name", "embed"),
    [("cnn", False), ("cnn", True), ("int8", True), ("cnn-bf16", False), ("lookup", True),
     ("pictures", False)],
)  # fmt: skip
def test_the_plugin_gives_the_bits_of_the_session(
    name: str, embed: bool, plugin: Path, tmp_path: Path
) -> None:
    (case,) = [one for one in CASES if one.name == name]
    model, context = tmp_path / "m.rai", tmp_path / "m_ctx.onnx"
    compile_model(
        case.make(), precision=case.precision, cache_dir=tmp_path / "c", output=model,
        ep_context=context, ep_context_embed=embed,
    )  # fmt: skip
    graph = onnx.load(context).graph
    outputs = [
        f"{one.name}:{helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type).itemsize}"
        for one in graph.output
    ]
    kinds = {one.name: one.type.tensor_type.elem_type for one in graph.input}
    for turn, feeds in enumerate(case.feeds[:2]):
        words = []
        for number, (key, array) in enumerate(feeds.items()):
            (tmp_path / f"in{number}.bin").write_bytes(array.tobytes())
            shape = "x".join(map(str, np.shape(array)))
            words.append(f"{key}=in{number}.bin:{kinds[key]}:{shape}")
        command = [wine(), str(plugin), str(plugin.with_name("vermilion_ep.dll")), context.name]
        for trust, code in (("", 3), ("1", 0))[turn:]:  # trust is not a matter of inputs
            done = subprocess.run(
                [*command, *words, "--", *outputs], cwd=tmp_path, capture_output=True, text=True,
                check=False, env={**os.environ, "VERMILION_TRUST": trust},
            )  # fmt: skip
            assert done.returncode == code, done.stdout + done.stderr
            assert ("was not made by this user" in done.stderr) == (not trust)
        wanted = c_library.wanted(model, feeds)
        assert c_library.same_bits(c_library.written(tmp_path, wanted), wanted)
