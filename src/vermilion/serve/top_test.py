"""What `vermilion top` makes of two readings."""

from __future__ import annotations

import json
import random

import pytest

from vermilion.errors import DeviceError, OptionError
from vermilion.serve.metrics import Metrics
from vermilion.serve.top import parsed, read, rows


def test_rates_between_two_readings() -> None:
    metrics = Metrics()
    metrics.ready_when("m", lambda: True)
    metrics.request("m", "kserve", 200, 0.004)
    before = parsed(metrics.text()[0].decode(), 10.0)
    for _ in range(98):
        metrics.request("m", "kserve", 200, 0.004)
    metrics.request("m", "kserve", 200, 0.3)
    metrics.request("m", "kserve", 429, 0.1)
    metrics.ran("m", 8, 0.02)
    metrics.ran("m", 4, 0.02)
    metrics.tokens("m", written=50)
    metrics.cache("m", running=2, used=64, capacity=256)
    metrics.queue_length("m", 3)
    metrics.restarted("m")
    (row,) = rows(before, parsed(metrics.text()[0].decode(), 12.0))
    assert (row.model, row.is_ready, row.waiting, row.restarts) == ("m", True, 3, 1)
    assert (row.requests_per_s, row.failed_per_s, row.tokens_per_s) == (50, 0.5, 25)
    times = (row.p50_at_most_ms, row.p99_at_most_ms)  # the buckets that they are in
    assert (times, row.batch, row.cache) == ((5, 500), 6, 0.25)


def test_times_above_the_last_bucket_have_no_bound() -> None:
    metrics = Metrics()
    before = parsed(metrics.text()[0].decode(), 0.0)
    metrics.request("m", "kserve", 200, 500.0)
    (row,) = rows(before, parsed(metrics.text()[0].decode(), 1.0))
    assert (row.requests_per_s, row.p50_at_most_ms, row.p99_at_most_ms) == (1, None, None)
    assert "Infinity" not in json.dumps(row.as_json())


def test_a_server_that_was_started_anew_counts_from_nothing() -> None:
    old, new = Metrics(), Metrics()
    for _ in range(9):
        old.request("m", "kserve", 200, 0.1)
    for _ in range(4):
        new.request("m", "kserve", 200, 0.001)
    first, second = (parsed(one.text()[0].decode(), at) for at, one in enumerate((old, new)))
    (row,) = rows(first, second)
    assert (row.requests_per_s, row.failed_per_s, row.p99_at_most_ms) == (4, 0, 1)


def test_a_gauge_is_asked_when_it_is_read() -> None:
    metrics, is_ready = Metrics(), [True]
    metrics.ready_when("m", lambda: is_ready[0])
    first = parsed(metrics.text()[0].decode(), 0.0)
    is_ready[0] = False
    second = parsed(metrics.text()[0].decode(), 1.0)
    assert [row.is_ready for row in (*rows(first, first), *rows(first, second))] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "", "<html><body>hello</body></html>", "{}", "vermilion_x{model=", 'vermilion_a{le="b"} 1',
        "vermilion_a 1 2 3 4", "python_info 1\n", 'vermilion_a{model="m} 1', "\0\N{BULLET}",
        "# TYPE vermilion_a histogram\nvermilion_a_bucket{le=\"x\",model=\"m\"} 1\n",
    ],
)  # fmt: skip
def test_what_are_no_numbers_of_ours(text: str) -> None:
    if text.startswith("vermilion_a 1"):
        text += "\nvermilion_b{"
    with pytest.raises(DeviceError, match="no `vermilion serve`"):
        parsed(text, 0.0)


def test_numbers_that_are_damaged_are_told_as_such() -> None:
    metrics = Metrics()
    metrics.request("m", "kserve", 200, 0.1)
    good, draw = metrics.text()[0].decode(), random.Random(1)
    for _ in range(300):
        at = draw.randrange(len(good))
        text = good[:at] + draw.choice(["", "}", '"', "\\", "\n", "x", "{", "nan"]) + good[at + 1 :]
        try:
            rows(parsed(text, 0.0), parsed(good, 1.0))
            rows(parsed(good, 0.0), parsed(text, 1.0))
        except DeviceError:
            continue


def test_where_no_server_is() -> None:
    for url in ("file:///etc/passwd", "127.0.0.1:8000", "", "http://[::1", "http://a b"):
        with pytest.raises((OptionError, DeviceError), match=r"no address|no server answers"):
            read(url)
    for url in ("http://127.0.0.1:9", "http://127.0.0.1:abc", "http:///", "http://a\nb"):
        with pytest.raises((OptionError, DeviceError), match=r"no address|no server answers"):
            read(url)
