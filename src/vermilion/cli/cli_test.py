"""The command line as its user meets it: processes, their output and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2]
HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "torch", "PIL")


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("COLUMNS", None)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        cwd=cwd,
        timeout=120,
    )


def vermilion(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return python("-m", "vermilion", *arguments, cwd=cwd)


def only_object(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    loaded = json.loads(done.stdout)
    assert list(loaded)[:3] == ["schema_version", "verb", "ok"]
    assert loaded["schema_version"] == 1
    return loaded


def carry_out(work: str, **terminal: bool) -> subprocess.CompletedProcess[str]:
    """Run one verb whose work is the given Python lines, in a process of its own."""
    body = "\n    ".join(work.strip().splitlines())
    return python(
        "-c",
        "import sys\n"
        "from vermilion.cli.output import Result\n"
        "from vermilion.cli.verb import Terminal, carry_out\n"
        "from vermilion.errors import *\n"
        f"terminal = Terminal('test', **{terminal!r})\n"
        f"def work():\n    {body}\n"
        "sys.exit(carry_out(terminal, work))\n",
    )


def test_help_is_instant_because_it_imports_nothing_heavy() -> None:
    done = python(
        "-c",
        "import sys\n"
        "from vermilion.cli import main\n"
        "code = main(['--help'])\n"
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules])",
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_help_lists_every_verb() -> None:
    done = vermilion("--help")
    assert done.returncode == 0
    for verb in ("devices", "doctor", "export", "cache"):
        assert verb in done.stdout


def test_no_verb_is_wrong_use_and_shows_the_help() -> None:
    done = vermilion()
    assert done.returncode == 2
    assert "devices" in done.stdout


def test_version_is_one_line() -> None:
    done = vermilion("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("vermilion ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["devises"], "No such command"),
        (["devices", "--jsno"], "No such option: --jsno"),
        (["export"], "Missing argument"),
        (["export", "a:b", "--input", "1"], "Missing option"),
        (["export", "a:b", "--input", "1", "-o", "x.onnx", "--opset", "seven"], "--opset"),
        (["cache"], "Missing command"),
    ],
)
def test_wrong_use_is_exit_code_2_with_a_hint(arguments: list[str], message: str) -> None:
    done = vermilion(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: `vermilion")


def test_wrong_use_is_json_where_json_is_asked_for() -> None:
    done = vermilion("export", "--json")
    assert done.returncode == 2
    loaded = only_object(done)
    assert (loaded["verb"], loaded["ok"]) == ("export", False)
    assert loaded["error"].keys() == {"message", "where", "hint"}


@pytest.mark.parametrize(
    ("error", "code"), [("OptionError", 2), ("ModelError", 1), ("DeviceError", 1)]
)
def test_our_errors_give_their_exit_code_and_no_traceback(error: str, code: int) -> None:
    done = carry_out(f"raise {error}('bad', where='m.onnx', hint='fix it')", as_json=True)
    assert done.returncode == code
    assert done.stderr == "error: bad (m.onnx)\nhint: fix it\n"
    error_object = {"message": "bad", "where": "m.onnx", "hint": "fix it"}
    assert only_object(done)["error"] == error_object


def test_a_fault_of_ours_is_short_and_debug_shows_where() -> None:
    short = carry_out("return {}['missing']")
    assert short.returncode == 1
    assert "Traceback" not in short.stderr
    assert "this is a fault in vermilion: KeyError: 'missing'" in short.stderr
    assert "--debug" in short.stderr
    long = carry_out("return {}['missing']", debug=True)
    assert long.returncode == 1
    assert "Traceback" in long.stderr


def test_a_missing_file_and_missing_memory_are_not_called_our_fault() -> None:
    done = carry_out("open('/no/such/file')")
    assert done.returncode == 1
    assert done.stderr == (
        "error: No such file or directory (/no/such/file)\nhint: check the path\n"
    )
    done = carry_out("raise OSError('384 requested and 0 written')")
    assert done.stderr.startswith("error: no space left on the disk\nhint: ")
    done = carry_out("raise MemoryError")
    assert done.stderr.startswith("error: out of memory\n")


def test_an_interrupted_verb_gives_130() -> None:
    # A shell's background job is told to ignore the signal, and so are all that it starts.
    work = "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    # The handler runs between two instructions, not always at once: there must be some left.
    work += "signal.raise_signal(signal.SIGINT)\ntime.sleep(60)"
    done = carry_out(work, as_json=True)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted\n"
    assert only_object(done)["ok"] is False


def test_a_gate_that_is_not_met_is_exit_code_1_with_the_result() -> None:
    done = carry_out("return Result({'percent': 94.0}, lambda: '94 %', ok=False)", as_json=True)
    assert done.returncode == 1
    assert only_object(done)["percent"] == 94.0
    assert done.stderr == ""


def test_warnings_are_for_people_and_machines() -> None:
    work = "terminal.warn('random data')\nreturn Result({}, lambda: 'done')"
    done = carry_out(work, as_json=True)
    assert done.stderr == "warning: random data\n"
    assert only_object(done)["warnings"] == ["random data"]
    assert carry_out(work).stdout == "done\n"


def test_libraries_warn_only_when_asked_to() -> None:
    work = "import warnings; warnings.warn('old')\nreturn Result({}, lambda: 'done')"
    assert carry_out(work).stderr == ""
    assert "old" in carry_out(work, verbose=True).stderr


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no POSIX shell")
def test_a_reader_that_leaves_early_is_not_an_error() -> None:
    command = f"{sys.executable} -m vermilion devices --json | true"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stderr == ""


def test_what_a_code_page_lacks_does_not_crash() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from vermilion.cli.output import Result\n"
            "from vermilion.cli.verb import Terminal, carry_out\n"
            "carry_out(Terminal('test'), lambda: Result({}, lambda: 'a → b'))",
        ],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "cp1252"},
    )
    assert done.stdout == b"a ? b" + os.linesep.encode()


def test_devices_for_people_and_for_machines_tell_the_same() -> None:
    people, machines = vermilion("devices"), vermilion("devices", "--json")
    assert people.returncode == machines.returncode == 0
    loaded = only_object(machines)
    assert loaded["cpu"]["brand"] in people.stdout
    assert ("none found" in people.stdout) == (not loaded["npus"])
    assert all(provider["name"] in people.stdout for provider in loaded["providers"])
    assert people.stderr == ""


def test_doctor_says_how_to_mend_each_fault() -> None:
    done = vermilion("doctor", "--json")
    loaded = only_object(done)
    assert done.returncode == (1 if loaded["errors"] else 0)
    assert loaded["ok"] == (loaded["errors"] == 0)
    assert loaded["findings"]
    for finding in loaded["findings"]:
        assert finding["fix"] or finding["level"] in ("ok", "note")
    people = vermilion("doctor")
    assert all(f["what"].split()[0] in people.stdout for f in loaded["findings"])


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no POSIX shell")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("devices --json > /dev/full", 1),
        ("devices > /dev/full", 1),
        ("nothing --json > /dev/full", 1),
        ("inspect none.onnx --json > /dev/full", 1),
        ("--help > /dev/full", 1),
        ("--version > /dev/full", 1),
        ("devices >&-", 0),
        ("devices --json >&-", 0),
        ("inspect none.onnx --json >&- 2>&-", 2),
    ],
)
def test_a_stream_that_takes_nothing_is_told_in_words(line: str, code: int) -> None:
    if "/dev/full" in line and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    done = _shell(line)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert "fault in vermilion" not in done.stderr
    if code == 1:
        assert "cannot be printed: No space left on device" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no POSIX shell")
@pytest.mark.parametrize("streams", ["2>&-", "<&- 2>&-", "2> /dev/full"])
def test_a_result_is_printed_whatever_becomes_of_the_messages(streams: str) -> None:
    assert json.loads(_shell(f"devices --json {streams}").stdout)["ok"]
    assert json.loads(_shell(f"inspect none.onnx --json {streams}").stdout)["ok"] is False


def test_a_width_of_nothing_is_none() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "vermilion", "devices", "--targets"]
    seen = {
        subprocess.run(
            command, capture_output=True, env={**environment, "COLUMNS": width}, check=True
        ).stdout
        for width in ("0", "", "-3", "wide", "120")
    }
    assert len(seen) == 1
    assert seen != {b""}


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{sys.executable} -m vermilion {line}",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=120,
    )
