"""Networks behind HTTP, as Triton's client, curl and hostile bodies meet them."""

from __future__ import annotations

import gzip
import io
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from served import (
    Asker,
    body,
    mutated,
    network,
    pid_of,
    process_of,
    serving,
    until,
    value,
    waiting,
)
from vermilion.api import compile_model
from vermilion.process.child import environment
from vermilion.serve.metrics import Log
from vermilion.serve.run import ModelServer

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client", "tritonclient")
KEY = "0123456789abcdef-one"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for name in ("twice", "mixed", "kinds", "layer"):
        network(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, cache: Path) -> Iterator[ModelServer]:
    log = io.StringIO()
    settings = {"max_queue": 4, "max_body_bytes": 1 << 16, "time_limit_s": 30.0, "threads": 1}
    words = [folder / "layer.onnx"]  # compiled; the others are as right, and loaded sooner
    words += [folder / f"{name}.onnx@onnxruntime" for name in ("twice", "mixed", "kinds")]
    with serving(*words, log=Log(log), cache_dir=cache, **settings) as server:
        server.written = log  # type: ignore[attr-defined]
        yield server


@pytest.fixture
def ask(server: ModelServer) -> Iterator[Asker]:
    asker = Asker(server)
    yield asker
    asker.close()


def test_what_the_server_says_of_itself(ask: Asker) -> None:
    assert ask("/v2/health/live")[0] == 200
    assert ask("/v2/health/ready")[0] == 200
    assert "binary_tensor_data" in ask("/v2")[1]["extensions"]
    _, about, _ = ask("/v2/models/kinds")
    assert about["inputs"] == [
        {"name": "a", "datatype": "INT64", "shape": [-1]},
        {"name": "b", "datatype": "BOOL", "shape": [-1]},
        {"name": "c", "datatype": "BYTES", "shape": [-1]},
    ]
    assert ask("/v2/models/kinds/versions/1/ready")[0] == 200
    _, config, _ = ask("/v2/models/twice/config")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (32, [4])
    # Rows that depend on each other share no batch, whatever their first axis is called.
    assert ask("/v2/models/mixed/config")[1]["max_batch_size"] == 0
    for path in (
        "/v2/models/none",
        "/v2/models/twice/versions/9",
        "/v2/nothing",
        "/v2/models/..%2f",
    ):
        status, told, _ = ask(path)
        assert status == 404
        assert "error" in told


def test_an_answer_waits_for_no_acknowledgement(ask: Asker) -> None:
    asked = body([[1, 2, 3, 4]], [1, 4])
    took = []
    for _ in range(30):
        begin = time.perf_counter()
        assert ask("/v2/models/twice/infer", asked)[0] == 200
        took.append(time.perf_counter() - begin)
    assert min(took) < 0.03  # a client acknowledges after 40 ms what it has no answer to


def test_json_in_and_out(ask: Asker) -> None:
    asked = {"id": "mine", **body([[1, 2, 3, 4]], [1, 4])}
    status, found, headers = ask("/v2/models/twice/infer", asked, {"X-Request-ID": "abc-1"})
    assert status == 200
    assert found == {
        "model_name": "twice", "model_version": "1", "id": "mine",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2, 4, 6, 8]}],
    }  # fmt: skip
    assert headers["x-request-id"] == "abc-1"
    packed = gzip.compress(json.dumps(asked).encode())
    assert ask("/v2/models/twice/infer", packed, {"Content-Encoding": "gzip"})[1] == found
    rows = (("a", "INT64", [1, -2]), ("b", "BOOL", [True, False]), ("c", "BYTES", ["a", "ü"]))
    kinds = {"inputs": [body(data, [2], name, kind)["inputs"][0] for name, kind, data in rows]}
    outputs = ask("/v2/models/kinds/infer", kinds)[1]["outputs"]
    assert [one["data"] for one in outputs] == [[2, -4], [False, True], ["a", "ü"]]


def test_tritons_client(server: ModelServer, folder: Path, cache: Path) -> None:
    import tritonclient.http as triton

    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("layer")
    assert client.get_model_metadata("layer")["inputs"][0]["shape"] == [-1, 64]
    assert client.get_model_config("layer")["max_batch_size"] == 32
    session = compile_model(folder / "layer.onnx", cache_dir=cache).session(threads=1)
    rows = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    wanted = session.run(None, {"x": rows})[0]
    for is_binary in (True, False):
        given = triton.InferInput("x", rows.shape, "FP32")
        given.set_data_from_numpy(rows, binary_data=is_binary)
        output = triton.InferRequestedOutput("y", binary_data=is_binary)
        found = client.infer("layer", [given], outputs=[output], request_id="7").as_numpy("y")
        assert np.array_equal(found, wanted)  # bit for bit, through JSON too
    given = triton.InferInput("x", [1, 64], "FP32").set_data_from_numpy(rows[:1])
    output = triton.InferRequestedOutput("y", class_count=3)
    best = client.infer("layer", [given], outputs=[output]).as_numpy("y")
    assert int(best[0, 0].split(b":")[1]) == int(wanted[0].argmax())
    future = client.async_infer("layer", [given])
    assert future.get_result().as_numpy("y").shape == (1, 10)
    with pytest.raises(triton.InferenceServerException, match="no input `z`"):
        client.infer(
            "layer", [triton.InferInput("z", [1, 64], "FP32").set_data_from_numpy(rows[:1])]
        )
    client.unload_model("kinds")
    assert not client.is_model_ready("kinds")
    index = {row["name"]: row["state"] for row in client.get_model_repository_index()}
    assert (index["kinds"], index["twice"]) == ("UNAVAILABLE", "READY")
    client.load_model("kinds")
    assert client.is_model_ready("kinds")
    with pytest.raises(triton.InferenceServerException):
        client.load_model("../../etc/passwd")
    with pytest.raises(triton.InferenceServerException, match="without parameters"):
        client.load_model("kinds", config="{}")
    client.close()


def test_requests_share_batches(server: ModelServer) -> None:
    process = process_of(server, "twice")
    askers = [Asker(server) for _ in range(5)]
    process.send_signal(signal.SIGSTOP)  # one runs, four wait
    try:
        with ThreadPoolExecutor(5) as pool:
            bodies = [body([at] * 4, [1, 4]) for at in range(5)]
            futures = [pool.submit(askers[0], "/v2/models/twice/infer", bodies[0])]
            time.sleep(0.5)  # it is with the process before the others come, in a batch of its own
            futures += [
                pool.submit(asker, "/v2/models/twice/infer", text)
                for asker, text in zip(askers[1:], bodies[1:], strict=True)
            ]
            until(lambda: waiting(server, "twice") == 4)
            full = Asker(server)
            status, told, headers = full("/v2/models/twice/infer", body([9] * 4, [1, 4]))
            assert (status, int(headers["retry-after"]) >= 1) == (429, True)
            assert "requests wait" in told["error"]
            full.close()
            process.send_signal(signal.SIGCONT)
            found = [future.result()[1]["outputs"][0]["data"][0] for future in futures]
    finally:
        process.send_signal(signal.SIGCONT)
    assert found == [0, 2, 4, 6, 8]
    largest = value(server, 'vermilion_batch_size_bucket{le="2.0",model="twice"}')
    assert value(server, 'vermilion_batch_size_bucket{le="4.0",model="twice"}') > largest
    for asker in askers:
        asker.close()


def test_a_worker_that_is_killed_costs_nothing(server: ModelServer) -> None:
    before = value(server, RESTARTS)
    asked = body([0.5] * 64, [1, 64])
    stop = threading.Event()

    def load() -> list[int]:
        asker, found = Asker(server), []
        while not stop.is_set():
            found.append(asker("/v2/models/layer/infer", asked)[0])
        asker.close()
        return found

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(load) for _ in range(2)]
        try:
            for kills in (1, 2):
                time.sleep(0.2)
                process = process_of(server, "layer")
                process.kill()
                until(lambda old=process.pid: pid_of(server, "layer") != old)
                assert value(server, RESTARTS) == before + kills
            time.sleep(0.1)
        finally:
            stop.set()
        statuses = {status for future in futures for status in future.result()}
    assert statuses == {200}


RESTARTS = 'vermilion_worker_restarts_total{model="layer"}'


@pytest.mark.parametrize("count", [600, pytest.param(2000, marks=pytest.mark.long)])
def test_bodies_of_all_kinds(count: int, ask: Asker) -> None:
    """What is wrong is told as such: never a fault of the server, never a worker that is gone."""
    draw = random.Random(5)
    good = json.dumps({"id": "a", **body([[1, 2, 3, 4]], [1, 4])}).encode()
    counts: dict[int, int] = {}
    headers = {"Inference-Header-Content-Length": "40"}
    for number in range(count):
        data = mutated(good, draw)
        told = ask("/v2/models/twice/infer", data, headers if number % 5 == 0 else {})
        counts[told[0]] = counts.get(told[0], 0) + 1
        assert told[0] in (200, 400), (data, told)
    assert counts[400] > count // 3
    assert counts[200] > count // 60
    assert ask("/v2/models/twice/infer", good)[0] == 200
    deep = b'{"inputs":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    assert ask("/v2/models/twice/infer", deep)[0] == 400
    assert ask("/v2/models/twice/infer", b" " * (1 << 17))[0] == 413


def test_pages_of_other_places_are_refused(ask: Asker, server: ModelServer) -> None:
    local = {"Origin": server.url}
    assert ask("/v2", headers=local)[0] == 200
    assert ask("/v2", headers={"Origin": "http://elsewhere.example"})[0] == 403
    assert ask("/v2", headers={"Host": "elsewhere.example"})[0] == 403
    assert ask("/v2", headers={"Host": "[::1"})[0] in (200, 403)
    status, page, headers = ask("/")
    assert (status, b"Models served here" in page) == (200, True)
    assert "connect-src 'self'" in headers["content-security-policy"]


def test_the_log_has_a_line_for_each_request(server: ModelServer, ask: Asker) -> None:
    ask("/v2/models/twice/infer", body([1] * 4, [1, 4]), {"X-Request-ID": "find-me"})
    ask("/v2", headers={"X-Request-ID": "no\tid"})
    rows = [json.loads(line) for line in server.written.getvalue().splitlines()]  # type: ignore[attr-defined]
    row = next(row for row in rows if row.get("id") == "find-me")
    assert (row["model"], row["status"], row["method"]) == ("twice", 200, "POST")
    assert not any(row.get("id") == "no\tid" for row in rows)


def test_keys_and_what_is_loaded_when_asked_for(folder: Path, cache: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# ours\n{KEY}\n0123456789abcdef-two\n")
    words = folder / "twice.onnx@onnxruntime"
    with serving(words, cache_dir=cache, keys=keys, load_all=False, threads=1) as server:
        nobody, somebody = Asker(server), Asker(server, Authorization=f"Bearer {KEY}")
        wrong = Asker(server, Authorization=f"Bearer {KEY}x")
        assert nobody("/v2/health/live")[0] == 200
        for asker in (nobody, wrong):
            status, _, headers = asker("/v2/models/twice/infer", body([1] * 4, [1, 4]))
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert somebody("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 503
        assert somebody("/v2/repository/models/twice/load", b"")[0] == 200
        assert somebody("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 200
        assert somebody("/v1/models")[1]["data"][0]["id"] == "twice"
        told = somebody("/v1/chat/completions", {"model": "twice", "messages": [
            {"role": "user", "content": "a"}]})  # fmt: skip
        assert (told[0], told[1]["error"]["code"]) == (404, "model_not_found")
        for asker in (nobody, somebody, wrong):
            asker.close()


def test_what_was_accepted_is_answered_before_the_end(folder: Path, cache: Path) -> None:
    words = folder / "twice.onnx@onnxruntime"
    with serving(words, cache_dir=cache, threads=1, max_batch=1) as server:
        process = process_of(server, "twice")
        process.send_signal(signal.SIGSTOP)
        askers = [Asker(server) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            asked = body([1] * 4, [1, 4])
            futures = [pool.submit(asker, "/v2/models/twice/infer", asked) for asker in askers]
            try:
                until(lambda: waiting(server, "twice") == 1)  # and the other one runs
                server.stop()
                time.sleep(0.3)
            finally:
                process.send_signal(signal.SIGCONT)
            assert [future.result()[0] for future in futures] == [200, 200]
        for asker in askers:
            asker.close()


def test_a_process_that_hangs_does_not_keep_the_server(folder: Path, cache: Path) -> None:
    words = folder / "twice.onnx@onnxruntime"
    with serving(words, cache_dir=cache, threads=1, drain_s=1.0, time_limit_s=300.0) as server:
        process_of(server, "twice").send_signal(signal.SIGSTOP)
        asker = Asker(server)
        asker.send("/v2/models/twice/infer", body([1] * 4, [1, 4]))
        time.sleep(0.5)  # it is with the process
    asker.close()  # and the server has ended: `serving` waits a minute for it


def test_a_server_that_is_killed_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    words = ["serve", f"{folder / 'twice.onnx'}@onnxruntime", "--port", "0", "--instances", "2"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        line = [sys.executable, "-m", "vermilion", *words]
        server = subprocess.Popen(line, stderr=file, env=environment())
    try:
        until(lambda: b'"event": "ready"' in log.read_bytes() or server.poll() is not None)
        workers = psutil.Process(server.pid).children()
        starts = [json.loads(one.cmdline()[-1]) for one in workers]
        (scratch,) = {start["scratch"] for start in starts}
        assert (len(workers), Path(scratch).is_dir()) == (2, True)
    finally:
        server.kill()
        server.wait()
    until(lambda: not any(one.is_running() for one in workers) and not Path(scratch).exists())
