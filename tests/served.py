"""A server in this process, with its models in processes of their own."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import psutil

from vermilion.serve.catalog import find_models
from vermilion.serve.metrics import Log
from vermilion.serve.run import ModelServer
from vermilion.serve.settings import Settings

NETWORKS = {
    "twice": "(float[n,4] x) => (float[n,4] y) { y = Add(x, x) }",
    "fixed": "(float[2,3] x) => (float[2,3] y) { y = Neg(x) }",
    "mixed": "(float[n,2] x) => (float[n,2] y) { m = ReduceMean<axes = [0]>(x) y = Sub(x, m) }",
    "kinds": """(int64[n] a, bool[n] b, string[n] c) => (int64[n] d, bool[n] e, string[n] f) {
        d = Add(a, a) e = Not(b) f = Identity(c) }""",
    "layer": """(float[batch,64] x) => (float[batch,10] y) {
        h = MatMul(x, w) y = Softmax(h) }""",
}


def network(folder: Path, name: str) -> Path:
    """Write a small network."""
    text = f'<ir_version: 8, opset_import: ["": 13]>\n{name} {NETWORKS[name]}'
    model = onnx.parser.parse_model(text)
    if name == "layer":
        values = [(at * 37 % 101 - 50) / 100 for at in range(64 * 10)]
        weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [64, 10], values)
        model.graph.initializer.append(weights)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


@contextmanager
def serving(*words: str | Path, log: Log | None = None, **settings: Any) -> Iterator[ModelServer]:
    """Serve models until the block ends."""
    places = find_models([str(word) for word in words])
    server = ModelServer(places, Settings(port=0, **settings), log or Log(None))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until = time.monotonic() + 120
        while thread.is_alive() and time.monotonic() < until:
            if not settings.get("load_all", True) or server.is_loaded.wait(0.05):
                break
        assert not failures, failures
        yield server
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


class Asker:
    """One connection that is kept."""

    def __init__(self, server: ModelServer, **headers: str) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._headers = headers

    def __call__(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None,
        method: str = "", raw: bool = False,
    ) -> tuple[int, Any, Mapping[str, str]]:  # fmt: skip
        """Return status, what was answered (read, where it is JSON and not `raw`), and headers."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        self._connection.request(method, path, data, {**self._headers, **(headers or {})})
        reply = self._connection.getresponse()
        text = reply.read()
        told = {name.lower(): value for name, value in reply.getheaders()}
        if told.get("content-type", "") == "application/json" and not raw:
            return reply.status, json.loads(text), told
        return reply.status, text, told

    def send(self, path: str, body: Any) -> None:
        """Ask without waiting for an answer."""
        self._connection.request("POST", path, json.dumps(body).encode(), self._headers)

    def close(self) -> None:
        self._connection.close()


def body(values: Any, shape: list[int], name: str = "x", datatype: str = "FP32") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": values}]}


def process_of(server: ModelServer, name: str) -> Any:
    return psutil.Process(pid_of(server, name))


def pid_of(server: ModelServer, name: str) -> int:
    served: Any = server.catalog.version(name).served
    return int(served.processes[0])


def numbers(server: ModelServer) -> str:
    return server.metrics.text()[0].decode()


def value(server: ModelServer, name: str) -> float:
    lines = [line for line in numbers(server).splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def waiting(server: ModelServer, name: str) -> float:
    return value(server, f'vermilion_queue_length{{model="{name}"}}')


def until(holds: Any, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# What is put in a body's place.
_PIECES = (
    b"null", b'"\\ud800"', b"1" * 400, b"-1", b"1e999", b"{}", b"[]", b'"x"', b"true", b"NaN",
    b"9" * 30, b"\xff",
    b'"binary_data_size":4', b'"parameters":{"binary_data_size":4}', b"[[1,2],[3]]",
)  # fmt: skip


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return a body that was damaged in one to three places."""
    text = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice((0, 1, 1, 2, 5, 20)))
        match draw.randrange(4):
            case 0:
                del text[at:end]
            case 1:
                text[at:end] = draw.choice(_PIECES)
            case 2:
                text[at:at] = text[at:end]
            case _:
                text[at:end] = bytes(draw.randrange(256) for _ in range(end - at))
    return bytes(text)
