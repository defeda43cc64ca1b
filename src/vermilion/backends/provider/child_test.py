from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fake_worker
from vermilion.backends.base import Availability
from vermilion.backends.provider.child import Fault, ProviderProcess, Stacks, find_faults
from vermilion.backends.provider.contract import Request
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.literal.run import run_literally
from vermilion.process.arrays import TensorFile
from vermilion.proof.bounds import FormatName
from vermilion.proof.judge import Question

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


TEXT = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4,64] x, int64[8] i) => (float[4,64] y, int64[8] j) { y = Mul (x, x) j = Add (i, i) }"""
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
INPUTS = {"x": X, "i": np.arange(1, 9)}


def faults(form: FormatName = "fp32", batch: int | None = 4, **found: Any) -> list[Fault]:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    expected = run_literally(model, INPUTS).outputs
    question = Question(model, INPUTS, expected, {**expected, **found}, form)
    return find_faults(question, batch=batch)


def test_a_fault_of_one_entry_is_told_from_one_of_all() -> None:
    assert faults() == []
    swapped = X * X
    swapped[2] = -swapped[2]
    (fault,) = faults(y=swapped)
    assert (fault.kind, fault.entry) == ("wrong-entry", 2)
    (fault,) = faults(y=swapped, batch=None)
    assert (fault.kind, fault.entry) == ("wrong", None)
    assert faults(j=np.full(8, np.iinfo(np.int64).min))[0].kind == "unwritten"
    half = X * X
    half[1] = np.nan
    assert (faults(y=half)[0].kind, faults(y=half)[0].entry) == ("unwritten", 1)


def test_scale_is_judged_as_well_as_direction() -> None:
    for factor in (2.0, 0.1, 1.13):
        (fault,) = faults(y=X * X * np.float32(factor))
        assert fault.kind == "wrong"
        assert "SQNR" in fault.words
        assert faults("bf16", y=X * X * np.float32(factor))
    off = np.arange(1, 9) * 2
    off[3] += 1
    assert faults(j=off)[0].words == "1 of 8 values differ"


def test_the_format_s_own_rounding_is_no_fault() -> None:
    rounded = (X * X).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert faults("bf16", y=rounded) == []
    assert faults("fp32", y=rounded)


STRIX, PHOENIX = find_target("strix"), find_target("phoenix")
WORDS = {"driver": "the driver"}


@dataclass(frozen=True)
class Driver:
    version: str

    def as_details(self) -> dict[str, str]:
        return {"driver": self.version, "folder": "anything"}


def stacks(asked: list[str]) -> Stacks[Driver]:
    def find(target: object) -> Driver | Availability:
        name = str(getattr(target, "name", ""))
        asked.append(name)
        return Driver("2") if name == "strix" else Availability(False, "no such NPU", "buy one")

    return Stacks(find, WORDS)


def test_a_target_is_looked_for_once_and_only_when_asked_for() -> None:
    asked: list[str] = []
    here = stacks(asked)
    assert asked == []
    assert here.available(STRIX).usable
    assert here.versions(STRIX) == {"driver": "2", "folder": "anything"}
    assert here.needed(STRIX) == Driver("2")
    assert asked == ["strix"]


def test_what_is_not_there_has_its_reason() -> None:
    here = stacks([])
    assert here.available(PHOENIX).reason == "no such NPU"
    assert here.versions(PHOENIX) == {}
    with pytest.raises(DeviceError, match="no such NPU") as raised:
        here.needed(PHOENIX)
    assert (raised.value.where, raised.value.hint) == ("phoenix", "buy one")
    with pytest.raises(DeviceError):
        here.same(PHOENIX, {"driver": "2"})


def test_a_part_of_another_driver_is_refused_and_what_has_no_word_is_not_compared() -> None:
    here = stacks([])
    assert here.same(STRIX, {"driver": "2", "folder": "elsewhere"}) == Driver("2")
    assert here.same(STRIX, {}) == Driver("2"), "an older bundle kept nothing"
    with pytest.raises(ArtifactError, match="the driver was 1 and is 2"):
        here.same(STRIX, {"driver": "1"})
    with pytest.raises(ArtifactError, match="the driver was unknown and is 2"):
        here.same(STRIX, {"driver": ""})
