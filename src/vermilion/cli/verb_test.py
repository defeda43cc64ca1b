from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Annotated

import pytest
import typer

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, describe, verb
from vermilion.cores import usable_cores
from vermilion.errors import VermilionError


@pytest.mark.parametrize("threads", [0, 1])
def test_a_limit_of_threads_holds_for_all_that_a_verb_does(
    threads: int, capfd: pytest.CaptureFixture[str]
) -> None:
    @verb("count", limits_threads=True)
    def count(terminal: Terminal) -> Result:
        return Result({"cores": usable_cores()}, lambda: "")

    assert count(json=True, verbose=False, debug=False, threads=threads) == 0
    assert json.loads(capfd.readouterr().out)["cores"] == (threads or usable_cores())


def test_verbs_that_run_a_model_take_threads() -> None:
    import typer

    from vermilion.cli import build_app

    app = typer.main.get_command(build_app())
    named = {
        name
        for name, command in app.commands.items()  # type: ignore[attr-defined]
        if any("--threads" in one.opts for one in command.params)
    }
    assert named >= {
        "hello", "export", "inspect", "optimize", "quantize", "compile", "run", "batch",
        "compare", "bench", "model_benchmark",
    }  # fmt: skip


# Others are answers of the server, which no verb gives.
KINDS = [kind for kind in VermilionError.__subclasses__() if kind.__module__ == "vermilion.errors"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_failure_says_what_to_do(kind: type[VermilionError]) -> None:
    own = describe(kind("it is so", hint="do that"), "llm build")
    assert (own.hint, own.exit_code) == ("do that", kind.exit_code)
    assert describe(kind("it is so"), "llm build").hint
    if kind.exit_code == 2:
        assert "`vermilion llm build --help`" in describe(kind("it is so"), "llm build").hint


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e20, 10**20])
def test_numbers_that_no_option_means_are_wrong_use(
    number: float, capfd: pytest.CaptureFixture[str]
) -> None:
    @verb("wait")
    def wait(terminal: Terminal, *, for_s: Annotated[float, typer.Option("--for")]) -> Result:
        raise AssertionError

    assert wait(json=True, verbose=False, debug=False, for_s=number) == 2
    assert "`--for` is" in json.loads(capfd.readouterr().out)["error"]["message"]


def test_no_room_for_temporary_files_is_told_with_the_way_out() -> None:
    code = """
import resource, signal, tempfile
from vermilion.cli.verb import describe
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    tempfile.mkdtemp()
except OSError as error:
    failure = describe(error, "run")
    print(failure.message, failure.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("No usable temporary directory")
    assert "TMPDIR" in done.stdout
