"""What a server counts, for `/metrics`, and its log: a line of JSON for each request."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Log:
    """Lines of JSON, or none."""

    def __init__(self, stream: TextIO | None = sys.stderr) -> None:
        self._stream = stream

    def write(self, event: str, **details: object) -> None:
        """Write a line; a reader that is gone is none of the server's business."""
        if self._stream is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": moment, "event": event, **details}, ensure_ascii=False)
        line = line.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class Metrics:
    """Everything that is counted, by model."""

    def __init__(self, log: Log | None = None) -> None:
        self._log = log or Log(None)
        self._registry = registry = CollectorRegistry()
        model = ("model",)

        def histogram(name: str, words: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(name, words, model, registry=registry, buckets=buckets)

        self._requests = Counter(
            "vermilion_requests", "Requests, by API and status.", ("model", "api", "status"),
            registry=registry,
        )  # fmt: skip
        self._seconds = histogram("vermilion_request_seconds", "From request to answer.")
        self._waited = histogram("vermilion_queue_seconds", "Time in the queue.")
        self._computed = histogram("vermilion_compute_seconds", "Time of a batch, or of a step.")
        self._first = histogram("vermilion_first_token_seconds", "From request to first token.")
        self._batch = histogram("vermilion_batch_size", "Rows of a batch, or of a step.", _BATCHES)
        gauges: dict[str, str] = {
            "vermilion_queue_length": "Requests that wait.",
            "vermilion_model_ready": "1 where a model answers.",
            "vermilion_fallback_operators": "Operators that ONNX Runtime computes.",
            "vermilion_running_sequences": "Texts that are being written.",
            "vermilion_cache_tokens": "Tokens of the cache of keys and values that are in use.",
            "vermilion_cache_capacity_tokens": "Tokens that the cache has room for.",
        }
        self._gauges = {
            name: Gauge(name, words, model, registry=registry) for name, words in gauges.items()
        }
        counters = {
            "vermilion_worker_restarts": "Processes that ended and were started again.",
            "vermilion_prompt_tokens": "Tokens that were read.",
            "vermilion_cached_prompt_tokens": "Tokens of prompts that the cache had.",
            "vermilion_generated_tokens": "Tokens that were written.",
        }
        self._counters = {
            name: Counter(name, words, model, registry=registry) for name, words in counters.items()
        }

    def request(self, model: str, api: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(model, api, str(status)).inc()
        if status < 400:
            self._seconds.labels(model).observe(seconds)

    def ran(self, model: str, rows: int, seconds: float, waited: Sequence[float] = ()) -> None:
        """Count a batch."""
        self._batch.labels(model).observe(rows)
        self._computed.labels(model).observe(seconds)
        for one in waited:
            self._waited.labels(model).observe(one)

    def first_token(self, model: str, seconds: float) -> None:
        """Count how long the first token took."""
        self._first.labels(model).observe(seconds)

    def tokens(self, model: str, *, read: int = 0, cached: int = 0, written: int = 0) -> None:
        """Count tokens."""
        counts = {"prompt": read, "cached_prompt": cached, "generated": written}
        for name, count in counts.items():
            self._counters[f"vermilion_{name}_tokens"].labels(model).inc(count)

    def cache(self, model: str, *, running: int, used: int, capacity: int) -> None:
        """Note how full a cache is."""
        self._gauges["vermilion_running_sequences"].labels(model).set(running)
        self._gauges["vermilion_cache_tokens"].labels(model).set(used)
        self._gauges["vermilion_cache_capacity_tokens"].labels(model).set(capacity)

    def queue_length(self, model: str, length: int) -> None:
        """Note how many requests wait."""
        self._gauges["vermilion_queue_length"].labels(model).set(length)

    def fallback(self, model: str, operators: int) -> None:
        """Note how many operators are not ours."""
        self._gauges["vermilion_fallback_operators"].labels(model).set(operators)

    def ready_when(self, model: str, is_ready: Callable[[], bool]) -> None:
        """Take what says whether a model answers: it is asked whenever the numbers are read."""
        self._gauges["vermilion_model_ready"].labels(model).set_function(is_ready)

    def restarted(self, model: str) -> None:
        """Count a process that ended."""
        self._counters["vermilion_worker_restarts"].labels(model).inc()

    def note(self, text: str) -> None:
        """Log what somebody should know."""
        self._log.write("note", text=text)

    def fault(self, where: str) -> None:
        """Log the exception that is being handled: nothing of ours should have raised it."""
        self._log.write("fault", where=where, traceback=traceback.format_exc())

    def text(self) -> tuple[bytes, str]:
        """Return all numbers in Prometheus's form, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def stopwatch() -> Callable[[], float]:
    """Return what gives the seconds since now."""
    begin = time.perf_counter()
    return lambda: time.perf_counter() - begin
