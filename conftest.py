"""What every test of this project shares: a test that needs what is not here is skipped.

Every run ends with the list of what was skipped and why. With `--complete`, as CI runs it, the run
fails where that is more than hardware and systems: a test that a package would let run.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Generator
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from llvmlite.binding import llvm_version_info

from vermilion.clib.build import NoCompilerError, compiler
from vermilion.codegen import object as object_code
from vermilion.codegen.isa import Isa
from vermilion.hardware.cpu import detect_cpu

if TYPE_CHECKING:
    from commands import Command

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# Devices, by the file that the Linux driver makes for them.
DEVICE_FILES = {"hip": Path("/dev/kfd"), "npu": Path("/dev/accel/accel0")}
# Instructions of the CPU, by LLVM's name of them.
CPU_FEATURES = {"avx2": "AVX2", "avx512bf16": "AVX-512 BF16"}
# Programs, by the names that systems give them.
PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome")}
# Files that take minutes, of which one at the end would keep one worker busy alone.
LONGEST = frozenset({"smollm2_test.py", "pages_test.py"})
# How the reason of a test begins that no package would let run.
NOT_HERE = ("this machine ", "this system ")


def missing(thing: str) -> str:
    """Say what is missing for `thing` to be used, empty if nothing is."""
    if thing in DEVICE_FILES:
        file = DEVICE_FILES[thing]
        return "" if file.exists() else f"this machine has no {file}"
    if thing in CPU_FEATURES:
        has = thing in detect_cpu().features
        return "" if has else f"this machine has no {CPU_FEATURES[thing]}"
    if thing == "c compiler":
        try:
            compiler("linux")
        except NoCompilerError as error:
            return f"{error}: the package `ziglang` has one"
        return ""
    if thing in PROGRAMS:
        found = any(map(shutil.which, PROGRAMS[thing]))
        return "" if found else f"this system has no {thing}"
    return "" if find_spec(thing) is not None else f"the package `{thing}` is not installed"


@pytest.fixture
def vermilion(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    """Return the command line, with a cache of its own."""
    from commands import command_line

    return command_line(capfd, monkeypatch, tmp_path / "cache")


# The folder of objects that the processes of a run, and later runs, have in common.
OBJECTS = "VERMILION_TEST_OBJECTS"
_MOST_BYTES = 500 << 20  # of objects, of 10 kB as a rule, that later runs find
_COMPILER = hashlib.sha256(f"{llvm_version_info}".encode())
_COMPILER.update(Path(object_code.__file__).read_bytes())
# Tests put others in their places.
_open, _replace = open, os.replace


def compiled_once(compile_text: Callable[[str, Isa], bytes]) -> Callable[[str, Isa], bytes]:
    """Return a function that compiles a text unless some process of these tests has compiled it.

    The same small networks stand in hundreds of tests. What LLVM makes of a text depends on its
    version and on `object.py`, which are part of the name that the object has in the folder. That
    a text gives the same bytes in every process is held by `reproducible_test.py`, which does not
    come by here.
    """

    @wraps(compile_text)
    def compile_or_find(text: str, isa: Isa) -> bytes:
        folder = os.environ.get(OBJECTS)
        if folder is None:
            return compile_text(text, isa)
        key = _COMPILER.copy()
        key.update(f"{isa}\n{text}".encode())
        path = Path(folder, key.hexdigest())
        try:
            with _open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            data = compile_text(text, isa)
        aside = f"{path}.{os.getpid()}.{threading.get_ident()}"
        with contextlib.suppress(OSError):  # a test may have taken all of the disk
            with _open(aside, "wb") as file:
                file.write(data)
            _replace(aside, path)
        return data

    return compile_or_find


# Before any module takes it by its name.
object_code.compile_object = compiled_once(object_code.compile_object)
object_code._compile_apart = compiled_once(object_code._compile_apart)

from kernels import TARGETS  # noqa: E402


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    """Return this processor, and one without AVX-512 where that makes a difference."""
    name: str = request.param
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--complete` and `--update-golden`."""
    words = "fail where a test was skipped that this machine could run"
    parser.addoption("--complete", action="store_true", help=words)
    words = "write what verbs print on a terminal anew (tests/terminal)"
    parser.addoption("--update-golden", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Keep numpy's matrix library to one thread where a worker has each core to itself.

    Its threads spin while they wait: two to four times the work on busy cores (`one_thread.py`).
    Workers, and what they start, have the variable from here.
    """
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    kept = getattr(config, "cache", None)  # not with `-p no:cacheprovider`
    if kept is not None and OBJECTS not in os.environ:
        os.environ[OBJECTS] = str(folder_of_objects(kept))


def folder_of_objects(kept: pytest.Cache) -> Path:
    """Return the folder of objects among what pytest keeps between runs, empty if it is large."""
    folder = kept.mkdir("objects")
    with os.scandir(folder) as entries:
        total = sum(entry.stat().st_size for entry in entries)
    if total > _MOST_BYTES:
        shutil.rmtree(folder)
        folder.mkdir()
    return folder


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m long`, leave out files that have no such test: importing all takes half a minute."""
    if config.option.markexpr != "long" or not collection_path.name.endswith("_test.py"):
        return None
    return None if b"mark.long" in collection_path.read_bytes() else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, so that none is left at the end for one worker."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: ten thousand tests are no garbage.

    It went over them 25 times: 2.5 seconds of 14, in every worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `needs(thing)` where the thing is missing, and say what was."""
    for mark in item.iter_markers("needs"):
        for thing in mark.args:
            if reason := missing(thing):
                pytest.skip(reason)


def skipped(config: pytest.Config) -> Counter[str]:
    """Return how many tests were skipped, by reason; none in a worker, which reports to another."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    return Counter(one.longrepr[2].removeprefix("Skipped: ") for one in reports)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what was skipped."""
    found = skipped(config)
    if found:
        terminalreporter.section(f"{found.total()} skipped")
    for reason, count in sorted(found.items()):
        mark = "" if reason.startswith(NOT_HERE) else "COULD RUN: "
        terminalreporter.line(f"{count:4}  {mark}{reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where more than hardware was missing, if that was asked for."""
    could_run = [one for one in skipped(session.config) if not one.startswith(NOT_HERE)]
    if session.config.getoption("--complete") and could_run and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
