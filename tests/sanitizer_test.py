"""The C sources with AddressSanitizer and UndefinedBehaviorSanitizer, over the tests of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import c_library
from c_runtime_test import LOOKUP, from_text
from pages import ROOT
from vermilion.api import compile_model
from vermilion.clib import library
from vermilion.clib.build import FLAGS, INCLUDE, SOURCE
from vermilion.store.cache_dir import default_root
from vermilion.version import VERSION

pytestmark = pytest.mark.long
CHECKED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w")
# Where the tests look at the process: freed memory that is held back grows it, and what is loaded
# with the library is not the C library of the system alone.
LEFT_OUT = " and ".join(
    f"not {name}" for name in ("no_byte", "nothing_else", "program_writes", "command")
)
TESTS = ("c_runtime_test.py", "onnxruntime_plugin_test.py", "linked_decoders_test.py")


def runtime(name: str) -> str:
    """Return a sanitizer's library of the system's compiler; skip where there is none."""
    if shutil.which("gcc") is None:
        pytest.skip("this system has no gcc")
    command = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"this system's gcc has no {name}")
    return found


def build(output: Path, *words: str) -> None:
    about = [f'-DVERMILION_VERSION="{VERSION}"', f"-I{INCLUDE}", f"-I{SOURCE}"]
    output.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", *FLAGS, *about, *CHECKED, *words, "-o", str(output), "-lpthread"]
    subprocess.run(command, check=True)


def test_the_tests_of_the_library_run_without_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload = f"{runtime('libasan.so')} {runtime('libubsan.so')}"
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path))
    place = default_root() / "clib" / library._source_digest()
    shared = ("-shared", "-DVERMILION_BUILD")
    build(place / "libvermilion.so", *shared, str(SOURCE / "vermilion.c"))
    both = [str(SOURCE / name) for name in ("ep.c", "vermilion.c")]
    build(place / "libvermilion_ep.so", *shared, "-DVERMILION_API=", *both)
    # Leaks are Python's own; the program below is looked at for those.
    options = "detect_leaks=0:verify_asan_link_order=0:halt_on_error=1:quarantine_size_mb=1"
    files = [str(ROOT / "tests" / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         "-k", LEFT_OUT, *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "LD_PRELOAD": preload, "ASAN_OPTIONS": options},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Sanitizer" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program and the library in one, with sanitizers, and a model beside it."""
    runtime("libasan.so")
    folder = tmp_path_factory.mktemp("checked")
    sources = [str(c_library.PROGRAMS / "check.c"), str(SOURCE / "vermilion.c")]
    build(folder / "check", "-std=gnu11", *sources)
    compile_model(from_text(LOOKUP), cache_dir=folder / "cache", output=folder / "m.rai")
    return folder / "check"


@pytest.mark.parametrize(
    ("mode", "count"), [("memory", 1), ("pool", 20), ("threads", 50), ("fork", 50), ("reload", 30)]
)
def test_a_program_leaves_nothing_behind(
    mode: str, count: int, program: Path, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(1), program.with_name("m.rai")
    random.integers(-40, 40, (2, 5)).tofile(tmp_path / "in0.bin")
    random.standard_normal((2, 5, 24), np.float32).tofile(tmp_path / "in1.bin")
    words = [str(program), mode, str(model), str(count), "in0.bin:2x5", "in1.bin:2x5x24"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("equal\n")
