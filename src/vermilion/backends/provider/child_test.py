from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import fake_worker
from vermilion.backends.provider.child import ProviderProcess, blank, is_certain, unwritten
from vermilion.backends.provider.contract import Request
from vermilion.errors import DeviceError
from vermilion.process.arrays import TensorFile

TENSORS = [TensorFile(name, f"{name}.raw", "float32", (4,)) for name in ("x", "y")]


class Late(Exception):
    """What the handler of an alarm raises."""


@pytest.fixture
def slow(tmp_path: Path) -> ProviderProcess:
    """A session that takes a while to double its input."""
    request = Request("none", {}, (TENSORS[0],), (TENSORS[1],))
    worker = (fake_worker.__name__,)
    return ProviderProcess(request, tmp_path, worker=worker, open_limit_s=60, run_limit_s=60)


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no alarms")
def test_a_run_after_one_that_was_interrupted_gets_its_own_outputs(slow: ProviderProcess) -> None:
    def late(signum: int, frame: object) -> None:
        os.kill(slow.process, signal.SIGINT)  # as Ctrl-C does: it reaches both
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Late):
            slow.run({"x": np.full(4, 1, np.float32)})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert slow.run({"x": np.full(4, 5, np.float32)})["y"].tolist() == [10] * 4
    slow.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_neither_uses_nor_ends_its_parents_child(slow: ProviderProcess) -> None:
    fork = os.fork()
    if fork == 0:
        try:
            slow.run({"x": np.ones(4, np.float32)})
        except DeviceError as error:
            slow.stop()
            os._exit(0 if "forked" in error.message else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert slow.run({"x": np.full(4, 3, np.float32)})["y"].tolist() == [6] * 4
    slow.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="this system bounds no files")
def test_a_full_disk_is_said_before_anything_is_mapped(tmp_path: Path) -> None:
    import resource

    large = TensorFile("x", "x.raw", "float32", (1 << 22,))
    request = Request("none", {}, (large,), (TENSORS[1],))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(DeviceError, match="there is no room for the part's tensors") as caught:
            ProviderProcess(
                request, tmp_path, worker=(fake_worker.__name__,), open_limit_s=60, run_limit_s=60
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "TMPDIR" in caught.value.hint


TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_there_before_a_run_is_known_again(dtype: str, turn: int) -> None:
    found = blank(np.dtype(dtype), (4, 3), turn)
    assert found.dtype == np.dtype(dtype)
    assert unwritten(found, turn) == "it is never written"
    found[0] = 1
    assert unwritten(found, turn) == "entry 1 of the batch of 4 is never written"
    found[:] = 0
    assert unwritten(found, turn) == ""
    if np.dtype(dtype).kind == "f":
        found[:] = np.nan
        assert unwritten(found, turn) == "", "NaN of arithmetic are results"
    assert unwritten(blank(np.dtype(dtype), (0, 3), turn), turn) == ""
    assert unwritten(blank(np.dtype(dtype), (), turn), turn) == "it is never written"


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "?"])
def test_one_value_that_is_left_is_seen(dtype: str) -> None:
    found = blank(np.dtype(dtype), (2, 8), 1)
    found.reshape(-1)[1:] = 0
    assert unwritten(found, 1) == "1 of its 16 values are never written"


@pytest.mark.parametrize("dtype", TYPES)
def test_what_looks_so_by_chance_does_not_a_second_time(dtype: str) -> None:
    by_chance = blank(np.dtype(dtype), (3,), 1)
    if not is_certain(np.dtype(dtype)):
        assert unwritten(by_chance, 2) == ""
