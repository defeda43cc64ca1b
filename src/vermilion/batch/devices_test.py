from __future__ import annotations

import pytest

from vermilion.batch.devices import parse_devices, shared_out, with_threads
from vermilion.cores import allowed_cores, usable_cores
from vermilion.errors import OptionError


def test_the_cores_are_shared_out() -> None:
    assert shared_out((0, 1, 2, 3, 8), 2) == [(0, 1), (2, 3, 8)]
    assert shared_out((0, 1), 3) == [(), (), ()]


def test_devices_by_name() -> None:
    (only,) = parse_devices("cpu", "cpu")
    assert (only.name, only.cores, only.threads) == ("cpu:0", allowed_cores(), usable_cores())
    assert with_threads([only], 0) == (only,)
    assert with_threads([only], 7)[0].threads == 7
    names = [device.name for device in parse_devices("cpu:1, cpu:0", "cpu")]
    assert names == ["cpu:1", "cpu:0"]
    every = [core for device in parse_devices("all", "cpu") for core in device.cores]
    assert sorted(every) == list(allowed_cores())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no device"),
        ("tpu:0", "is no device"),
        ("cpu:x", "is no device"),
        ("gpu:0", "for a CPU and `gpu:0` is none"),
        ("cpu,cpu:0", "twice"),
    ],
)
def test_words_that_are_no_devices(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_devices(text, "cpu")
