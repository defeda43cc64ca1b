"""What `vermilion top` makes of two readings."""

from __future__ import annotations

import pytest

from vermilion.errors import DeviceError, OptionError
from vermilion.serve.metrics import Metrics
from vermilion.serve.top import parsed, read, rows


def test_rates_between_two_readings() -> None:
    metrics = Metrics()
    metrics.ready("m", True)
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
    assert (row.p50_ms, row.p99_ms, row.batch, row.cache) == (5, 500, 6, 0.25)


def test_where_no_server_is() -> None:
    with pytest.raises(OptionError, match="no address"):
        read("file:///etc/passwd")
    with pytest.raises(DeviceError, match="no server answers"):
        read("http://127.0.0.1:9")
