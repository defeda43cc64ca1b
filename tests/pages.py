"""Commands and programs of the documentation, carried out as they stand, one after the other.

One child process serves all pages: what a command imports, PyTorch above all, it imports once. Each
page has a folder of its own. The cache is one, as a reader's is: what one page has compiled,
another finds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entry_points import announced

ROOT = Path(__file__).parent.parent
# A block's language, what stands behind it, its text.
BLOCK = re.compile(r"^```(sh|python)(.*)\n([\s\S]*?)^```$", re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
EXITS = re.compile(r"# exits (\d)")
# The two set-up commands install the package: CI runs them before any test can run.
SET_UP = {"pip install . && vermilion hello", "pip install '.[test]' && pytest"}
GPU_NEEDED = "without ROCm and such a GPU"


@dataclass(frozen=True)
class Step:
    """A command line or a program, and the code that it ends with."""

    shown: str
    words: tuple[str, ...] = ()  # of a command, without `vermilion`; a program has none
    code: int = 0


def steps(page: str, folder: Path) -> Iterator[Step]:
    """Yield what a page carries out; blocks that begin with the name of a file become that file.

    The exit code stands behind the command, `# exits 1`, or for all of a block, `exit=1`.
    """
    for kind, rest, block in BLOCK.findall(page):
        if named := FILE.match(block):
            (folder / named[1]).write_text(block[named.end() :], encoding="utf-8")
        elif kind == "python":
            yield Step(block)
        else:
            for line in filter(str.strip, block.splitlines()):
                if line in SET_UP or (GPU_NEEDED in line and Path("/dev/kfd").exists()):
                    continue
                words = shlex.split(line, comments=True)
                assert words[0] == "vermilion", f"a command that no test can run: {line}"
                said = EXITS.search(line)
                code = int(said[1] if said else rest.strip().removeprefix("exit=") or 0)
                yield Step(line, tuple(words[1:]), code)


class Reader:
    """Who types what a page says: a child process that carries out one step after the other."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vermilion-")
        announced(Path(self._folder.name))
        paths = [self._folder.name, str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]
        paths.append(os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pages"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def carry_out(self, step: Step, folder: Path) -> None:
        """Carry out a step in a folder; AssertionError, with all it printed, if it ends wrongly."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cache = str(Path(self._folder.name, "cache"))
        request = {
            "text": step.shown, "words": step.words, "folder": str(folder), "cache": cache
        }  # fmt: skip
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, f"the process ended during {step.shown}"
        done = json.loads(reply)
        printed = f"{step.shown}\n{done['out']}\n{done['err']}"
        assert done["code"] == step.code, printed
        assert "Traceback" not in done["err"], printed

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


@contextmanager
def printed_to(files: tuple[Any, Any]) -> Iterator[None]:
    """Let all that this process and its children print go to two files."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(1), os.dup(2)]
    for number, file in enumerate(files, start=1):
        os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, own in enumerate(before, start=1):
            os.dup2(own, number)
            os.close(own)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables of the environment while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def answered(request: dict[str, Any]) -> int:
    """Carry out a request in this process; return its exit code."""
    from vermilion.cli import main

    folder = request["folder"]
    os.chdir(folder)
    os.environ["VERMILION_CACHE"] = request["cache"]
    known = set(sys.modules)
    try:
        if request["words"][:1] == ["trust"]:
            # Whom a page trusts, the user does not.
            with environment(XDG_DATA_HOME=str(Path(folder, "data"))):
                return main(request["words"])
        if request["words"]:
            return main(request["words"])
        exec(compile(request["text"], "page", "exec"), {"__name__": "__main__"})
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        # The next page has files of the same names.
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
                del sys.modules[name]


def serve() -> None:
    """Answer requests, a line of JSON each, until there are no more.

    What these tests have compiled is not compiled again.
    """
    import conftest  # noqa: F401

    replies = os.fdopen(os.dup(1), "w")
    sys.path.insert(0, "")
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with printed_to((out, err)):
                code = answered(json.loads(line))
            texts = [(file.seek(0), file.read())[1] for file in (out, err)]
        reply = {"code": code, "out": texts[0], "err": texts[1]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve()
