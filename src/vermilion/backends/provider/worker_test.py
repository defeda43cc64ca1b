"""What the worker gives ONNX Runtime. That it opens and runs is in the tests of its backends."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from vermilion.backends.provider.contract import CPU, MODEL_FILE, Request
from vermilion.backends.provider.worker import _asked_for, _providers
from vermilion.process.arrays import TensorFile

STRICT = {"session.disable_cpu_ep_fallback": "1"}


@pytest.mark.parametrize(
    ("provider", "entries", "names"),
    [
        ("MIGraphXExecutionProvider", {}, ["MIGraphXExecutionProvider", CPU]),
        ("MIGraphXExecutionProvider", STRICT, ["MIGraphXExecutionProvider"]),
        (CPU, {}, [CPU]),
    ],
)
def test_the_cpu_is_named_unless_it_must_not_help(
    provider: str, entries: dict[str, str], names: list[str]
) -> None:
    request = Request(provider, {"device_id": "0"}, (), (), session_entries=entries)
    assert [name for name, _ in _providers(request)] == names


@pytest.mark.parametrize(
    ("options", "devices"),
    [({"device_id": "1"}, ["b"]), ({}, ["a", "b"]), ({"device_id": "7"}, [])],
)
def test_a_plugin_gets_the_device_of_that_number(
    options: dict[str, str], devices: list[str]
) -> None:
    assert _asked_for(["a", "b"], Request("P", options, (), ())) == devices


def test_a_request_survives_its_message() -> None:
    tensor = TensorFile("x", "input0.raw", "<f4", (2, 3))
    request = Request("P", {"a": "1"}, (tensor,), (), model="key/context.onnx")
    assert Request.of_message(json.loads(json.dumps(asdict(request)))) == request
    assert Request("P", {}, (), ()).model == MODEL_FILE
