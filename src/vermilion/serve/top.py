"""What a running server is doing, from two readings of its `/metrics`."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from vermilion.errors import DeviceError, OptionError

_MOST_BYTES = 1 << 24
_LIMIT_S = 5.0
_PERCENTILES = (0.5, 0.99)
_OURS = "vermilion_"


@dataclass(frozen=True)
class Reading:
    """Numbers by their name and their model, and when they were read."""

    moment: float
    values: Mapping[tuple[str, str], float]
    buckets: Mapping[tuple[str, str], Mapping[float, float]]
    models: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What a model did between two readings.

    Half of the requests, and 99 of 100, took at most so many milliseconds: the upper bounds of the
    histogram's buckets that they are in. None where nothing was, or where no bound is finite.
    """

    model: str
    is_ready: bool
    requests_per_s: float
    failed_per_s: float
    p50_at_most_ms: float | None
    p99_at_most_ms: float | None
    waiting: int
    batch: float
    tokens_per_s: float
    cache: float | None  # share that is in use
    restarts: int

    def as_json(self) -> dict[str, object]:
        """Return the keys of a row of `models` in `top --json`."""
        return dict(vars(self))


def read(url: str, key: str = "") -> Reading:
    """Read a server's numbers. Raises: OptionError for no URL; DeviceError where none answers."""
    hint = "`http://127.0.0.1:8000`"
    try:
        scheme = urlsplit(url).scheme
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = Request(f"{url.rstrip('/')}/metrics", headers=headers)
    except ValueError as error:
        raise OptionError(f"`{url}` is no address of a server: {error}", hint=hint) from error
    if scheme not in ("http", "https"):
        raise OptionError(f"`{url}` is no address of a server", hint=hint)
    try:
        with urlopen(request, timeout=_LIMIT_S) as reply:
            text = reply.read(_MOST_BYTES).decode("utf-8", "replace")
    except HTTPError as error:
        hint = "`--key-file FILE` has the key" if error.code == 401 else ""
        raise DeviceError(f"the server answers {error.code}", where=url, hint=hint) from error
    except (OSError, HTTPException, ValueError) as error:
        raise DeviceError(
            f"no server answers: {error}", where=url, hint="is `vermilion serve` running there?"
        ) from error
    return parsed(text, time.monotonic(), url)


def parsed(text: str, moment: float, where: str = "") -> Reading:
    """Return the numbers in Prometheus's text.

    Raises: DeviceError where it is none, or another program's.
    """
    values: dict[tuple[str, str], float] = defaultdict(float)
    buckets: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    models: dict[str, None] = {}
    is_ours = False
    try:
        for family in text_string_to_metric_families(text):
            is_ours = is_ours or family.name.startswith(_OURS)
            for sample in family.samples:
                if not family.name.startswith(_OURS):
                    continue
                model, name = sample.labels.get("model", ""), sample.name
                if model:
                    models[model] = None
                if "le" in sample.labels:
                    buckets[name, model][float(sample.labels["le"])] = sample.value
                    continue
                if sample.labels.get("status", "0") >= "400":
                    name += "_failed"
                values[name, model] += sample.value
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # as the library has it
        raise _no_metrics(where) from error
    if not is_ours:
        raise _no_metrics(where)
    return Reading(moment, values, buckets, tuple(models))


def _no_metrics(where: str) -> DeviceError:
    return DeviceError(
        "what answers is no `vermilion serve`: its `/metrics` are not such a server's",
        where=where,
        hint="the address that the server printed when it started",
    )


def rows(before: Reading, after: Reading) -> list[Row]:
    """Return what each model did between two readings."""
    seconds = max(after.moment - before.moment, 1e-6)

    before = before if _goes_on(before, after) else Reading(before.moment, {}, {}, ())

    def gained(name: str, model: str) -> float:
        return after.values.get((name, model), 0.0) - before.values.get((name, model), 0.0)

    found = []
    for model in after.models:
        failed = gained("vermilion_requests_total_failed", model)
        batches = gained("vermilion_batch_size_count", model)
        p50, p99 = (_percentile(before, after, model, share) for share in _PERCENTILES)
        capacity = after.values.get(("vermilion_cache_capacity_tokens", model), 0.0)
        found.append(
            Row(
                model=model,
                is_ready=after.values.get(("vermilion_model_ready", model), 0.0) > 0,
                requests_per_s=(gained("vermilion_requests_total", model) + failed) / seconds,
                failed_per_s=failed / seconds,
                p50_at_most_ms=p50,
                p99_at_most_ms=p99,
                waiting=int(after.values.get(("vermilion_queue_length", model), 0)),
                batch=gained("vermilion_batch_size_sum", model) / batches if batches else 0.0,
                tokens_per_s=gained("vermilion_generated_tokens_total", model) / seconds,
                cache=(
                    after.values.get(("vermilion_cache_tokens", model), 0.0) / capacity
                    if capacity
                    else None
                ),
                restarts=int(after.values.get(("vermilion_worker_restarts_total", model), 0)),
            )
        )
    return found


def _goes_on(before: Reading, after: Reading) -> bool:
    """Say whether it is the same server still: one that was started anew counts from nothing."""
    counts = (key for key in before.values if key[0].endswith(("_total", "_failed", "_count")))
    return all(after.values.get(key, 0.0) >= before.values[key] for key in counts)


def _percentile(before: Reading, after: Reading, model: str, share: float) -> float | None:
    """Return the upper bound, in milliseconds, of the bucket that holds so much of the requests.

    None where there are none, or where it has no bound.
    """
    name = ("vermilion_request_seconds_bucket", model)
    own, old = after.buckets.get(name, {}), before.buckets.get(name, {})
    counts = {edge: count - old.get(edge, 0.0) for edge, count in sorted(own.items())}
    total = max(counts.values(), default=0.0)
    edges = [edge for edge, count in counts.items() if total and count >= share * total]
    return edges[0] * 1e3 if edges and math.isfinite(edges[0]) else None
