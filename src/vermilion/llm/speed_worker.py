"""One engine in a process of its own: `python -m vermilion.llm.speed_worker`.

Reads one JSON object a line, answers with one a line, and sleeps in between.

    open   name, setting          → engine, reason, load_s, load_cpu_s
    once   prompt, new, seed      → the four times of a `Sample`, peak_rss_mb
    bandwidth  threads, buffer_bytes (of each; may be left out) → gb_per_s
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from vermilion.errors import OptionError, VermilionError
from vermilion.llm.bandwidth import BUFFER_BYTES, read_bandwidth_gb_per_s
from vermilion.llm.speed_engines import OpenEngine, SpeedSetting, open_engine
from vermilion.memory import peak_rss_mb

COMMAND = ("-P", "-m", "vermilion.llm.speed_worker")


class Worker:
    """What is open in this process."""

    def __init__(self) -> None:
        self._engine: OpenEngine | None = None

    def carry_out(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Do what one message asks for. Raises whatever the engine raises."""
        match message.get("do"):
            case "open":
                begin, begin_cpu = time.perf_counter(), time.process_time()
                setting = SpeedSetting.of_message(message["setting"])
                self._engine = open_engine(message["name"], setting)
                return {
                    "engine": self._engine.label,
                    "reason": self._engine.reason,
                    "load_s": time.perf_counter() - begin,
                    "load_cpu_s": time.process_time() - begin_cpu,
                }
            case "once" if self._engine is not None:
                gc.collect()
                sample = self._engine.once(message["prompt"], message["new"], message["seed"])
                return {**dataclasses.asdict(sample), "peak_rss_mb": peak_rss_mb()}
            case "bandwidth":
                size = message.get("buffer_bytes", BUFFER_BYTES)
                return {"gb_per_s": read_bandwidth_gb_per_s(message["threads"], size)}
        raise OptionError(f"a worker cannot `{message.get('do')}` now")


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
        kind, words = type(error).__name__, error.message
        return {"kind": kind, "message": words, "where": error.where, "hint": error.hint}
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    return {"kind": "DeviceError", "message": words or kind, "where": kind, "hint": ""}


def main() -> None:
    """Serve this process's stdin and stdout; what libraries print goes to stderr."""
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, outgoing)


if __name__ == "__main__":
    main()
