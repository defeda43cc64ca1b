"""A language engine in a process of its own (`vermilion.process`): it sleeps between messages.

open   name, setting          → engine, reason, load_s, load_cpu_s
once   prompt, new, seed      → the four times of a `Sample`, peak_rss_mb
bandwidth  threads, buffer_bytes (of each; may be left out) → gb_per_s
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Mapping
from typing import Any

from vermilion.errors import OptionError
from vermilion.llm.bandwidth import BUFFER_BYTES, read_bandwidth_gb_per_s
from vermilion.llm.speed_engines import OpenEngine, SpeedSetting, open_engine
from vermilion.memory import peak_rss_mb

SPEED_WORKER = ("vermilion.llm.speed_worker",)


class Worker:
    """What is open in this process."""

    def __init__(self) -> None:
        self._engine: OpenEngine | None = None

    def open(self, name: str, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Open the model in an engine."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        self._engine = open_engine(name, SpeedSetting.of_message(setting))
        return {
            "engine": self._engine.label,
            "reason": self._engine.reason,
            "load_s": time.perf_counter() - begin,
            "load_cpu_s": time.process_time() - begin_cpu,
        }

    def once(self, prompt: int, new: int, seed: int) -> dict[str, Any]:
        """Generate once. Raises: OptionError where nothing is open."""
        if self._engine is None:
            raise OptionError("a worker has to `open` before this")
        gc.collect()
        sample = self._engine.once(prompt, new, seed)
        return {**dataclasses.asdict(sample), "peak_rss_mb": peak_rss_mb()}

    def bandwidth(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> dict[str, Any]:
        """Measure what the memory gives."""
        return {"gb_per_s": read_bandwidth_gb_per_s(threads, buffer_bytes)}
