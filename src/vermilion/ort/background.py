"""Compiling in a process of its own, which ends its work even where the one that began it ends.

A script may be over before its model is compiled. What it began goes to the cache, for the next
time; otherwise short scripts would begin it again and again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from vermilion.errors import VermilionError
from vermilion.files import resolved
from vermilion.ort.asked import Asked
from vermilion.ort.source import Source, compiled
from vermilion.process.child import environment

# Behind everything else that wants a core.
_NICENESS = 10
_NOT_SAID = "the process that compiled it ended without a word"


class Job:
    """A model that is being compiled. `done` is called in a thread, with the bundle or a reason."""

    def __init__(
        self,
        model: Path | bytes,
        asked: Asked,
        done: Callable[[Path | None, str], None],
    ) -> None:
        """Start it; bytes are written to a file for it, which goes with it."""
        scratch = ""
        if isinstance(model, bytes):
            scratch = tempfile.mkdtemp(prefix="vermilion-model-")
            file = Path(scratch, "model.onnx")
            file.write_bytes(model)
        else:
            file = model
        what = {
            "model": str(resolved(file)),
            "scratch": scratch,
            "sizes": dict(asked.sizes),
            "sizes_by_denotation": dict(asked.sizes_by_denotation),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, json.dumps(what)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            # Ctrl-C is for the script.
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self.is_over = threading.Event()
        threading.Thread(target=self._wait, args=(done,), daemon=True).start()

    def _wait(self, done: Callable[[Path | None, str], None]) -> None:
        stdout: IO[bytes] | None = self._process.stdout
        assert stdout is not None, "stdout is a pipe"
        with stdout:
            told = stdout.read()
        self._process.wait()
        try:
            answer = json.loads(told)
        except ValueError:
            answer = {"reason": _NOT_SAID}
        artifact = answer.get("artifact")
        try:
            done(Path(artifact) if artifact else None, str(answer.get("reason", "")))
        finally:
            self.is_over.set()


def main() -> None:
    """Compile what the first argument says, and print where it lies, or why it does not."""
    what = json.loads(sys.argv[1])
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    try:
        told = _compiled(what)
    finally:
        if what["scratch"]:
            shutil.rmtree(what["scratch"], ignore_errors=True)
    try:
        sys.stdout.write(json.dumps(told))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever began it is gone; it is in the cache
        os._exit(0)


def _compiled(what: Mapping[str, Any]) -> dict[str, str]:
    asked = Asked(sizes=what["sizes"], sizes_by_denotation=what["sizes_by_denotation"])
    file = Path(what["model"])
    source = Source(data=file.read_bytes()) if what["scratch"] else Source(file=file)
    try:
        return {"artifact": str(compiled(source, asked))}
    except VermilionError as error:
        return {"reason": error.message}


if __name__ == "__main__":
    main()
