"""Workers that answer, hang, crash, grow, print and are left alone: real processes all."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vermilion.errors import ArtifactError, DeviceError, OptionError
from vermilion.process.child import Child, ChildError, Watch
from vermilion.process.log import shorten_log

FAKE = ("fake_worker",)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with Child(FAKE, tmp_path / "log", who="a fake") as started:
        yield started


def test_messages_reach_the_worker_and_its_answers_come_back(child: Child) -> None:
    for text in ("plain", "zwei\nZeilen, ä", "\udcff", "x" * 300_000):
        assert child.ask("echo", {"text": text, "more": [1, None]}, limit_s=60) == {
            "text": text,
            "more": [1, None],
        }
    assert child.ask("sleep", {"seconds": 0}, limit_s=60) == {"then": ""}


def test_several_messages_are_answered_in_order(child: Child) -> None:
    for word in "abc":
        child.send("sleep", {"seconds": 0.01, "then": word})
    assert [child.receive(60)["then"] for _ in "abc"] == list("abc")


def test_what_a_method_raises_keeps_its_kind_and_its_three_parts(child: Child) -> None:
    with pytest.raises(ChildError) as caught:
        child.ask("fail", {"words": "it is damaged"}, limit_s=60)
    raised = caught.value.raised
    assert isinstance(raised, ArtifactError)
    assert (raised.message, raised.where, raised.hint) == ("it is damaged", "here", "do it again")
    with pytest.raises(ChildError, match="no such file") as caught:
        child.ask("break_down", {"words": "no such\n  file"}, limit_s=60)
    assert isinstance(caught.value.raised, DeviceError)
    assert caught.value.raised.where == "RuntimeError"
    with pytest.raises(ChildError, match="cannot `dance`") as caught:
        child.ask("dance", limit_s=60)
    assert isinstance(caught.value.raised, OptionError)
    with pytest.raises(ChildError, match="cannot `__init__`"):
        child.ask("__init__", limit_s=60)
    assert child.ask("echo", {"still": "here"}, limit_s=60) == {"still": "here"}


def test_a_worker_that_ends_is_one_clear_error_and_stays_one(child: Child) -> None:
    child.ping(60)
    for _ in range(2):
        with pytest.raises(ChildError) as caught:
            child.ask("end", {"code": 3}, limit_s=60, stage="running")
        error = caught.value
        assert (error.kind, error.stage) == ("crashed", "running")
        assert error.message == "the process ended while running: exit code 3"
        assert error.where == "a fake, running"
        assert error.hint == "its last words: free(): invalid pointer"
    assert not child.is_alive


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGKILL])
def test_a_crash_is_named_by_its_signal(number: signal.Signals, child: Child) -> None:
    with pytest.raises(ChildError, match=f"while doing `end_by`: {number.name}") as caught:
        child.ask("end_by", {"number": int(number)}, limit_s=60)
    assert caught.value.hint == "it wrote nothing"


def test_a_hang_is_ended_in_time(child: Child) -> None:
    child.ping(60)
    begin = time.monotonic()
    with pytest.raises(ChildError, match=r"doing `sleep` took more than 0\.3 s and was stopped"):
        child.ask("sleep", {"seconds": 60}, limit_s=0.3)
    assert time.monotonic() - begin < 10
    assert not psutil.pid_exists(child.process), "not even a zombie"
    with pytest.raises(ChildError, match="the process ended") as caught:
        child.ask("echo", limit_s=60)
    assert caught.value.kind == "crashed"


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        Child(("vermilion.no_such_module",), tmp_path / "log", who="nobody") as child,
        pytest.raises(ChildError, match="exit code 1") as caught,
    ):
        child.ping(60)
    assert "No module named 'vermilion.no_such_module'" in caught.value.hint


def test_one_that_takes_too_much_memory_is_ended(child: Child) -> None:
    child.ping(60)
    waited: list[float] = []
    watch = Watch(200 << 20, waited.append)
    with pytest.raises(ChildError, match=r"took more than 0\.2 GB") as caught:
        child.ask("grow", {"bytes_a_step": 8 << 20}, limit_s=60, watch=watch)
    assert caught.value.kind == "grown"
    assert not child.is_alive
    assert waited == sorted(waited)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="this system bounds no memory")
def test_a_worker_can_bound_its_own_memory(child: Child) -> None:
    with pytest.raises(ChildError, match="Unable to allocate") as caught:
        child.ask("grow_bounded", {"most_bytes": 256 << 20}, limit_s=60)
    assert caught.value.raised is not None, "it lives"
    assert child.is_alive


def test_what_is_printed_goes_to_the_log_and_is_no_answer(
    child: Child, capfd: pytest.CaptureFixture[str]
) -> None:
    child.ask("say", {"words": '{"ok": {}}'}, limit_s=60)
    assert child.ask("echo", {"a": 1}, limit_s=60) == {"a": 1}
    said = ['{"ok": {}}', "natively, no line", "at last", "a process of its own"]
    assert child.log.read_text().splitlines() == said
    assert capfd.readouterr() == ("", "")


def test_a_long_log_is_emptied(child: Child) -> None:
    child.ask("say", {"words": "x" * (1 << 20)}, limit_s=60)
    shorten_log(child.log)
    assert child.log.stat().st_size == 0
    child.ask("say", {"words": "again"}, limit_s=60)
    assert child.log.read_text().startswith("again\n"), "it goes on at the new end"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_it_stays_on_its_cores(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    with Child(FAKE, tmp_path / "log", who="a fake", cores=mine[-1:]) as child:
        assert child.ask("cores", limit_s=60) == {"cores": mine[-1:]}


def test_it_ends_when_nobody_asks(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Child(FAKE, tmp_path / "log", who="a fake", scratch=scratch, idle_s=0.2) as child:
        psutil.Process(child.process).wait(60)
        assert not child.is_alive
    assert not scratch.exists()


def test_nothing_is_left_of_one_that_nobody_holds(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        child = Child(FAKE, tmp_path / "log", who="a fake")
        child.ping(60)
        number = child.process
        del child
        gc.collect()
        assert not psutil.pid_exists(number), "not even a zombie"
    until = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before  # another test's may have ended meanwhile


def test_another_thread_may_end_it(child: Child) -> None:
    child.ping(60)
    threading.Timer(0.2, child.stop).start()
    with pytest.raises(ChildError, match="the process ended"):
        child.ask("sleep", {"seconds": 60}, limit_s=60)


class Late(Exception):
    """What the handler of an alarm raises."""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no alarms")
def test_an_interrupted_wait_leaves_the_worker_and_the_next_answer_is_its_own(child: Child) -> None:
    def late(signum: int, frame: object) -> None:
        os.kill(child.process, signal.SIGINT)  # as Ctrl-C does: it reaches both
        raise Late

    child.ping(60)
    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Late):
            child.ask("sleep", {"seconds": 0.5, "then": "first"}, limit_s=60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert child.ask("sleep", {"seconds": 0, "then": "second"}, limit_s=60) == {"then": "second"}


PARENT = """
import os, signal, sys
from pathlib import Path
from vermilion.process.child import Child
# A shell that starts this in the background has it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
scratch = Path(sys.argv[1])
scratch.mkdir()
child = Child(("fake_worker",), scratch / "log", who="a fake", scratch=scratch)
child.ping(60)
if sys.argv[2] == "forked" and os.fork() == 0:
    signal.pause()  # with copies of the pipes, had they not been closed
print(child.process, flush=True)
child.ask("sleep", {"seconds": 100}, limit_s=200)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such signals")
@pytest.mark.parametrize("forked", ["forked", ""])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_parent(how: signal.Signals, forked: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(scratch), forked],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert parent.stdout is not None
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.3)
        if how == signal.SIGINT:
            os.killpg(parent.pid, how)  # as a terminal does
        else:
            parent.send_signal(how)
        parent.wait(20)
        psutil.wait_procs([child], timeout=10)
        assert not child.is_running()
        # The worker removes it where the parent could not; Ctrl-C leaves it to its owner.
        assert how == signal.SIGINT or not scratch.exists()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
def test_a_forked_process_neither_uses_nor_ends_it() -> None:
    script = textwrap.dedent(
        """
        import os, sys, tempfile
        from pathlib import Path
        from vermilion.errors import DeviceError
        from vermilion.process.child import Child
        with tempfile.TemporaryDirectory() as folder:
            child = Child(("fake_worker",), Path(folder) / "log", who="a fake")
            child.ping(60)
            fork = os.fork()
            if fork == 0:
                try:
                    child.ask("echo", limit_s=60)
                except DeviceError as error:
                    print(error.message, flush=True)
                child.stop()
                del child
                raise SystemExit  # with all that an interpreter does at its end
            os.waitpid(fork, 0)
            print(child.ask("echo", {"still": "here"}, limit_s=60))
            child.stop()
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    first, second = done.stdout.splitlines()
    assert first == "this process was forked: the child that runs a fake is its parent's"
    assert second == "{'still': 'here'}"
    assert done.stderr == ""
