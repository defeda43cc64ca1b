"""Compiled models as libraries: linked into C and C++ programs, the right target's code chosen."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import c_library
import models
from commands import command_line
from vermilion.ahead.interface import checked_name, interface_of
from vermilion.ahead.objects import with_prefix, write_static
from vermilion.api import compile_model
from vermilion.cli import main
from vermilion.clib.library import linked_object
from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import find_target
from vermilion.runtime.manifest import TensorRecord
from vermilion.store.cache_dir import default_root

pytestmark = pytest.mark.needs("c compiler")
HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
LOOKUP = """g (int64[N,S] i, float[N,S,24] x) => (float[N,S,24] y, bool[N,S,24] b)
 { e = Gather(table, i)  y = Add(e, x)  b = Greater(e, x) }"""
RUN_HERE = "x86-64-v3"
FOR = f"{RUN_HERE},zen4,zen2"  # in any order: the one with the most features is tried first


def lookup() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEADER + LOOKUP)
    table = np.random.default_rng(3).standard_normal((40, 24), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    return proto


_BESIDE = ("h", "pc", "cmake")
FEEDS = {
    "i": np.random.default_rng(1).integers(-40, 40, (2, 5)),
    "x": np.random.default_rng(2).standard_normal((2, 5, 24), np.float32),
}
PICTURE = np.random.default_rng(4).standard_normal((1, 3, 16, 16), np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models, and libraries of them in every form."""
    folder = tmp_path_factory.mktemp("linked")
    onnx.save(lookup(), folder / "lookup.onnx")
    ir.save(models.small_cnn(), folder / "cnn.onnx")
    cache = ["--cache-dir", str(folder / "cache")]
    linked_object()  # which a test with a cache of its own must not compile again
    shutil.copytree(default_root() / "clib", folder / "cache" / "clib")
    for name, ending, targets in (
        ("lookup", "so", FOR),
        ("lookup", "a", RUN_HERE),
        ("lookup", "o", RUN_HERE),
        ("cnn", "o", RUN_HERE),
    ):
        output = folder / ending / f"{name}.{ending}"
        words = ["compile", str(folder / f"{name}.onnx"), "-t", targets, "-o", str(output)]
        assert main([*words, *cache]) == 0
        for beside in (output, *(output.with_name(f"{name}.{kind}") for kind in _BESIDE)):
            assert beside.is_file()
    return folder


def run_program(
    program: Path, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    for number, array in enumerate((*FEEDS.values(), PICTURE)):
        (folder / f"in{number}.bin").write_bytes(array.tobytes())
    return subprocess.run(
        [str(program)], cwd=folder, env={**os.environ, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def wanted(made: Path, name: str, feeds: Any) -> list[Any]:
    compiled = compile_model(
        made / f"{name}.onnx", target=RUN_HERE, cache_dir=made / "cache", elsewhere=True
    )
    assert compiled.cache_hit
    return c_library.wanted(compiled.artifact, feeds)


@pytest.mark.parametrize("ending", ["so", "a", "o"])
def test_a_program_calls_a_model_by_its_header(ending: str, made: Path, tmp_path: Path) -> None:
    where, program = made / ending, tmp_path / "program"
    files = [str(where / f"lookup.{ending}")]
    files += ["-DOTHER", str(where / "cnn.o")] if ending == "o" else []
    source = str(c_library.PROGRAMS / "linked.c")
    c_library.compile_program(program, source, f"-I{where}", *files, f"-Wl,-rpath,{where}")
    done = run_program(program, tmp_path)
    assert done.returncode == 0, done.stderr
    results = wanted(made, "lookup", FEEDS)
    assert c_library.same_bits(c_library.written(tmp_path, results), results)
    if ending == "o":
        (other,) = wanted(made, "cnn", {"input": PICTURE})
        assert (tmp_path / "out2.bin").read_bytes() == other.tobytes()


def test_the_code_is_chosen_by_what_the_processor_has(made: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    source, where = str(c_library.PROGRAMS / "linked.c"), made / "so"
    c_library.compile_program(
        program, source, f"-I{where}", str(where / "lookup.so"), f"-Wl,-rpath,{where}"
    )
    here = detect_cpu().features
    best = max(
        (name for name in FOR.split(",") if find_target(name).features <= here),
        key=lambda name: len(find_target(name).features),
    )
    assert run_program(program, tmp_path).stdout == f"{best}\n"
    # What zen2 has and the level has not, hidden: as on a processor without it.
    narrow = run_program(program, tmp_path, VERMILION_HIDE_FEATURES="sse4a,sha,avx512f")
    assert (narrow.returncode, narrow.stdout) == (0, f"{RUN_HERE}\n"), narrow.stderr
    results = wanted(made, "lookup", FEEDS)
    assert c_library.same_bits(c_library.written(tmp_path, results), results)
    none = run_program(program, tmp_path, VERMILION_HIDE_FEATURES="fma")
    assert none.returncode == 3
    assert none.stderr.startswith("4 none of the processors that the model was compiled for")


def test_cplusplus_takes_the_header_and_a_library_is_loaded_again_and_again(
    made: Path, tmp_path: Path
) -> None:
    (tmp_path / "main.cpp").write_text(
        '#include "lookup.h"\n#include "vermilion.h"\n'
        "int main() { lookup *model = nullptr; int code = lookup_open(&model, 1);"
        " lookup_close(model); return code; }\n"
    )
    program, where = tmp_path / "program", made / "so"
    words = c_library.host_compiler().words
    if words[-1] == "cc" and len(words) > 1:
        words = (*words[:-1], "c++")
    elif shutil.which("c++") is None:
        pytest.skip("this system has no C++ compiler")
    else:
        words = ("c++",)
    subprocess.run(
        [*words, "-Wall", f"-I{where}", f"-I{c_library.INCLUDE}", str(tmp_path / "main.cpp"),
         str(where / "lookup.so"), f"-Wl,-rpath,{where}", "-o", str(program)],
        check=True,
    )  # fmt: skip
    assert subprocess.run([str(program)], check=False).returncode == 0
    for _ in range(50):
        library = ctypes.CDLL(str(where / "lookup.so"))
        model = ctypes.c_void_p()
        assert library.lookup_open(ctypes.byref(model), 2) == 0
        library.lookup_close(model)
        handle = library._handle
        del library
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))
    mapped = Path("/proc/self/maps").read_text()
    assert str(where / "lookup.so") not in mapped


def test_only_the_header_is_exported(made: Path) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("this system has no nm")
    command = [nm, "-D", "--defined-only", str(made / "so" / "lookup.so")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    functions = ("open", "run", "run_on", "shapes", "close", "error", "target")
    assert names == {f"lookup_{name}" for name in functions}


def test_what_builds_ask_for_is_beside_it(made: Path) -> None:
    text = (made / "a" / "lookup.pc").read_text()
    assert "Libs: ${pcfiledir}/lookup.a -lpthread" in text
    cmake = (made / "so" / "lookup.cmake").read_text()
    assert "add_library(lookup::lookup SHARED IMPORTED)" in cmake


def test_what_the_command_says(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vermilion = command_line(capfd, monkeypatch, made / "cache")
    output, model = tmp_path / "libother.a", made / "lookup.onnx"
    library = vermilion("compile", model, "-t", FOR, "-o", output, "--json").data["library"]
    assert library["name"] == "other"
    assert library["targets"][0] == "zen4"
    assert Path(library["header"]).name == "other.h"
    text = HEADER + "g (float[4,4] x) => (float y) { a = Relu(x)  y = Det(a) }"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    done = vermilion("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so")
    assert done.code == 1
    assert "a library holds machine code alone" in " ".join(done.err.split())
    done = vermilion("compile", model, "-t", "gfx942", "-o", tmp_path / "m.so")
    assert done.code == 2
    assert "a library is for processors" in " ".join(done.err.split())


def test_names_in_c() -> None:
    names = ["input:0", "class", "input 0", "3d", "été", "x", "x_shape"]
    records = [TensorRecord(name, "tensor(float)", ("n", 3)) for name in names]
    fields = interface_of("libnet-v2", records, []).inputs
    assert [field.name for field in fields][:4] == ["input_0", "t_class", "input_0_2", "t_3d"]
    assert len({name for f in fields for name in (f.name, f"{f.name}_shape")}) == 2 * len(names)
    assert checked_name("libnet-v2") == "net_v2"
    assert checked_name("3d") == "m_3d"
    with pytest.raises(OptionError):
        checked_name("网络")
    with pytest.raises(UnsupportedError, match=r"tensor\(string\)"):
        interface_of("m", [TensorRecord("x", "tensor(string)", ())], [])
    with pytest.raises(UnsupportedError, match="no ELF object"):
        with_prefix(b"MZ", "x_")


def test_the_same_files_give_the_same_archive(made: Path, tmp_path: Path) -> None:
    objects = [made / "o" / "lookup.o", made / "o" / "cnn.o"]
    for name in ("one.a", "other.a"):
        write_static(tmp_path / name, objects)
    assert (tmp_path / "one.a").read_bytes() == (tmp_path / "other.a").read_bytes()
