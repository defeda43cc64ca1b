"""One engine in a process of its own: `python -m vermilion.bench.worker`.

Reads one JSON object a line, answers with one a line, and sleeps in between. What libraries print
on stdout goes to stderr, which whoever started the process has sent to a file.

    compile  model, precision, folder            → artifact, compile_s, file_bytes, peak_rss_mb
    open     engine, precision, model, threads  → version, runs_on, import_s, load_s
    answer   inputs, outputs (.npz files), names → names of the outputs, first_run_ms
    turn     runs, settle                        → ms, quiet_after_ms
    profile  runs                                → runs: the events of each
    usage                                        → peak_rss_mb, cpu_s
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np

from vermilion.bench.engines import Opened, Request, compile_ours, open_engine
from vermilion.bench.quiet import wait_until_quiet
from vermilion.errors import OptionError, VermilionError
from vermilion.memory import peak_rss_mb

Message = Mapping[str, Any]
Thing = TypeVar("Thing")


@dataclass
class Worker:
    """What is open in this process."""

    request: Request | None = None
    opened: Opened | None = None
    inputs: dict[str, np.ndarray] | None = None

    def carry_out(self, message: Message) -> dict[str, Any]:
        """Do what one message asks for. Raises whatever the engine raises."""
        does: Mapping[str, Callable[[Message], dict[str, Any]]] = {
            "compile": self._compile,
            "open": self._open,
            "answer": self._answer,
            "turn": self._turn,
            "profile": self._profile,
            "usage": lambda _: {"peak_rss_mb": peak_rss_mb(), "cpu_s": time.process_time()},
        }
        wanted = str(message.get("do"))
        if wanted not in does:
            raise OptionError(f"a worker cannot `{wanted}`", hint=f"it can {', '.join(does)}")
        return does[wanted](message)

    def _compile(self, message: Message) -> dict[str, Any]:
        artifact, seconds = compile_ours(
            Path(message["model"]), message["precision"], Path(message["folder"])
        )
        return {
            "artifact": str(artifact),
            "compile_s": seconds,
            "file_bytes": artifact.stat().st_size,
            "peak_rss_mb": peak_rss_mb(),
        }

    def _open(self, message: Message) -> dict[str, Any]:
        self.request = Request(
            message["engine"], message["precision"], message["model"], message["threads"]
        )
        self.opened = open_engine(self.request)
        wait_until_quiet()
        return {
            "version": self.opened.version,
            "runs_on": self.opened.runs_on,
            "import_s": self.opened.import_s,
            "load_s": self.opened.load_s,
        }

    def _answer(self, message: Message) -> dict[str, Any]:
        """Run once. Arrays travel by position: a name may hold what a file name must not."""
        opened = _needed(self.opened)
        with np.load(message["inputs"], allow_pickle=False) as stored:
            arrays = [stored[f"arr_{index}"] for index in range(len(message["names"]))]
        self.inputs = dict(zip(message["names"], arrays, strict=True))
        begin = time.perf_counter()
        found = opened.run(self.inputs)
        first_run_ms = (time.perf_counter() - begin) * 1e3
        np.savez(message["outputs"], *[np.array(array) for array in found])
        wait_until_quiet()
        return {"names": list(opened.output_names), "first_run_ms": first_run_ms}

    def _turn(self, message: Message) -> dict[str, Any]:
        """Run in a burst; the first `settle` runs fill caches and wake workers, untimed."""
        opened, inputs = _needed(self.opened), _needed(self.inputs)
        gc.collect()
        gc.disable()
        for _ in range(message["settle"]):
            opened.run(inputs)
        taken = []
        for _ in range(message["runs"]):
            begin = time.perf_counter_ns()
            opened.run(inputs)
            taken.append((time.perf_counter_ns() - begin) / 1e6)
        gc.enable()
        return {"ms": taken, "quiet_after_ms": wait_until_quiet()}

    def _profile(self, message: Message) -> dict[str, Any]:
        """Open the engine once more, so that it tells of its steps, and run it."""
        from vermilion.bench.events import profile_engine

        request, inputs = _needed(self.request), _needed(self.inputs)
        runs = profile_engine(request, inputs, message["runs"])
        return {"runs": [[asdict(event) for event in run] for run in runs]}


def _needed(thing: Thing | None) -> Thing:
    if thing is None:
        raise OptionError("a worker has to `open` and `answer` before this")
    return thing


def serve(incoming: TextIO, outgoing: TextIO) -> None:
    """Carry out messages until there are no more."""
    worker = Worker()
    for line in incoming:
        try:
            reply = {"ok": True, **worker.carry_out(json.loads(line))}
        except Exception as error:  # an engine may raise anything; the process that asked decides
            reply = {"ok": False, "error": _described(error)}
        outgoing.write(json.dumps(reply) + "\n")
        outgoing.flush()


def _described(error: Exception) -> dict[str, str]:
    if isinstance(error, VermilionError):
        return {
            "kind": type(error).__name__,
            "message": error.message,
            "where": error.where,
            "hint": error.hint,
        }
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = lines[0] if lines else type(error).__name__
    return {"kind": "DeviceError", "message": words, "where": type(error).__name__, "hint": ""}


def main() -> None:
    """Serve this process's stdin and stdout."""
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, outgoing)


if __name__ == "__main__":
    main()
