"""Replicas on a Ray cluster of two nodes of this machine: they really start, scale and die."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pages import ROOT
from serve_page_test import free_port
from served import body, network, until
from vermilion.api import compile_model
from vermilion.errors import DeviceError, ModelError, OptionError
from vermilion.serve.cluster import Scaling, _cores_each, _failure, check_packages
from vermilion.serve.settings import Settings

on_ray = pytest.mark.needs("ray", "grpc", "fastapi", "starlette", "uvicorn", "tritonclient")
_TWO_NODES = """
    import sys
    from ray.cluster_utils import Cluster
    nodes = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    cluster.add_node(num_cpus=2)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
"""
# What the command line does, with delays that a test can wait for.
_QUICK = """
    import sys
    from pathlib import Path
    from vermilion.serve.catalog import find_models
    from vermilion.serve.cluster import Scaling, serve_on_cluster
    from vermilion.serve.metrics import Log
    from vermilion.serve.settings import Settings
    address, port = sys.argv[1:]
    settings = Settings(port=int(port), is_replica=True, threads=1, max_batch=2)
    scaling = Scaling(1, 2, up_s=1.0, down_s=2.0)
    serve_on_cluster(
        find_models(["layer.onnx"]), settings, Log(), print, address=address, scaling=scaling
    )
"""


@dataclass
class Process:
    """A process with the lines of JSON that it has logged."""

    popen: subprocess.Popen[bytes]
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        rows = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [row for row in map(json.loads, rows) if row["event"] == name]

    def until(self, holds: Callable[[], bool], limit_s: float = 120.0) -> None:
        def ended_or_holds() -> bool:
            assert self.popen.poll() is None, self.log.read_text()
            return holds()

        until(ended_or_holds, limit_s)

    def running(self) -> int:
        rows = self.events("replicas")
        return int(rows[-1]["running"]) if rows else 0


@contextmanager
def started(words: list[str], folder: Path, name: str) -> Iterator[Process]:
    environment = {
        **os.environ,
        "VERMILION_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        popen = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file
        )
    try:
        yield Process(popen, log)
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait()


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a cluster; return where it answers, and the process that all of it descends from."""

    def addresses() -> list[str]:
        return re.findall(r"^[0-9.]+:[0-9]+$", nodes.log.read_text(), re.M)

    with started([sys.executable, "-c", textwrap.dedent(_TWO_NODES)], folder, "nodes") as nodes:
        nodes.until(lambda: addresses() != [])
        root = psutil.Process(nodes.popen.pid)
        try:
            yield addresses()[0], root
        finally:
            all_of_it = root.children(recursive=True)
            assert nodes.popen.stdin is not None
            nodes.popen.stdin.close()
            nodes.popen.wait(60)
            for one in psutil.wait_procs(all_of_it, 10)[1]:
                one.kill()


def replicas(root: psutil.Process) -> list[psutil.Process]:
    found = []
    for one in root.children(recursive=True):
        try:
            if one.cmdline()[:1] and one.cmdline()[0].startswith("ray::ServeReplica:vermilion"):
                found.append(one)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


@dataclass
class Load:
    """Clients that ask as fast as they are answered, and once more where they are not."""

    port: int
    wanted: Callable[[np.ndarray[Any, Any]], Any]
    answered: int = 0
    failed: int = 0  # at the first try
    lost: list[str] = field(default_factory=list)  # at the second one too
    wrong: int = 0
    first: set[str] = field(default_factory=set)  # what was said at failed first tries
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        connection = None
        while not self.stop.is_set():
            rows = draw.standard_normal((2, 64)).astype(np.float32)
            text = json.dumps(body(rows.ravel().tolist(), [2, 64])).encode()
            for attempt in (1, 2):
                try:
                    connection = connection or http.client.HTTPConnection(
                        "127.0.0.1", self.port, timeout=60
                    )
                    connection.request("POST", "/v2/models/layer/infer", text)
                    reply = connection.getresponse()
                    told = reply.read()
                    if reply.status == 200:
                        found = np.array(json.loads(told)["outputs"][0]["data"], np.float32)
                        self.wrong += not np.array_equal(found, self.wanted(rows).ravel())
                        self.answered += 1
                        break
                    told = b"%d %s" % (reply.status, told)
                except OSError as error:
                    told = repr(error).encode()
                except http.client.HTTPException as error:
                    told = repr(error).encode()
                connection = None
                if attempt == 1:
                    self.failed += 1
                    self.first.add(told.decode(errors="replace")[:300])
                if attempt == 2:
                    self.lost.append(told.decode(errors="replace")[:300])

    @contextmanager
    def from_clients(self, count: int) -> Iterator[None]:
        self.stop.clear()
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(self.run, seed) for seed in range(count)]
            try:
                yield
            finally:
                self.stop.set()
            for future in futures:
                future.result()

    def check(self) -> None:
        assert self.lost == []
        assert self.wrong == 0
        assert self.answered > 20
        # A replica that ends, or a full queue on a busy machine, may cost a client its first try.
        assert self.failed <= max(4, self.answered // 50), self.first


@on_ray
@pytest.mark.long
def test_replicas_come_and_go_are_replaced_and_killed(tmp_path: Path) -> None:
    network(tmp_path, "layer")
    session = compile_model(tmp_path / "layer.onnx", cache_dir=tmp_path / "cache").session(
        threads=1
    )
    lock = threading.Lock()

    def wanted(rows: np.ndarray[Any, Any]) -> Any:
        with lock:
            return session.run(None, {"x": rows})[0]

    port = free_port()
    load = Load(port, wanted)
    page = (ROOT / "docs" / "serve.md").read_text("utf-8")
    (line,) = re.findall(r"^vermilion (serve .*--engine ray --address .*)$", page, re.M)
    with two_nodes(tmp_path) as (address, root):
        command = line.replace("HOST:6379", address).replace("scores.onnx", "layer.onnx").split()
        command = [sys.executable, "-m", "vermilion", *command, "--port", str(port)]
        command += ["--max-batch", "2"]  # bits are the same at the same batch
        broken = [word.replace("layer.onnx", "broken.onnx") for word in command]
        check_what_cannot_be_loaded(broken, tmp_path)  # and Ray Serve ends with it
        quick = [sys.executable, "-c", textwrap.dedent(_QUICK), address, str(port)]
        with started(quick, tmp_path, "quick") as first:
            first.until(lambda: bool(first.events("ready")))
            assert first.running() == 1
            with load.from_clients(12):
                first.until(lambda: first.running() == 2)  # by what waits
            first.until(lambda: first.running() == 1)
            load.check()
            check_what_cannot_be_loaded(broken, tmp_path)  # and what was there goes on
            assert first.popen.wait(30) == 0, first.log.read_text()
            with started(command, tmp_path, "second") as second:
                load.answered = load.failed = 0
                with load.from_clients(2):  # while one version is replaced by the next
                    second.until(lambda: load.answered > 0)
                    second.until(lambda: bool(second.events("ready")))
                assert [row["event"] for row in first.events("replaced")] == ["replaced"]
                load.check()
                second.until(lambda: second.running() == 2)
                with load.from_clients(4):
                    before = replicas(root)
                    models = before[0].children(recursive=True)
                    time.sleep(1)
                    before[0].kill()
                    killed = time.monotonic()
                    second.until(lambda: len(set(replicas(root)) - set(before)) == 1)
                    second.until(lambda: second.running() == 2)
                    time.sleep(1)
                load.check()
                print(
                    f"{load.answered} answered, {load.failed} at the second try only; "
                    f"a replica more {time.monotonic() - killed:.1f} s after the kill"
                )
                assert models
                assert not [one for one in models if one.is_running()]
                check_what_a_replica_refuses(port)
                second.popen.terminate()
                assert second.popen.wait(90) == 0, second.log.read_text()
            assert "Traceback" not in second.log.read_text()
        assert replicas(root) == []


def check_what_cannot_be_loaded(command: list[str], folder: Path) -> None:
    (folder / "broken.onnx").write_bytes(b"no model")
    with started(command, folder, "broken") as one:
        assert one.popen.wait(120) == 1
        told = one.log.read_text()
    assert "error: this is not an ONNX model" in told
    assert "Traceback" not in told


def check_what_a_replica_refuses(port: int) -> None:
    import tritonclient.http as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_ready()
    assert client.is_model_ready("layer")
    with pytest.raises(triton.InferenceServerException, match="the models that they were started"):
        client.unload_model("layer")
    client.close()


@on_ray
@pytest.mark.slow
def test_a_cluster_that_is_started_for_the_server(tmp_path: Path) -> None:
    network(tmp_path, "twice")
    port = free_port()
    words = ["serve", "twice.onnx@onnxruntime", "--engine", "ray", "--port", str(port)]
    with started([sys.executable, "-m", "vermilion", *words], tmp_path, "own") as one:
        one.until(lambda: bool(one.events("ready")))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asked = json.dumps(body([[1, 2, 3, 4]], [1, 4]))
        connection.request("POST", "/v2/models/twice/infer", asked)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["outputs"][0]["data"] == [2, 4, 6, 8]
        all_of_it = psutil.Process(one.popen.pid).children(recursive=True)
        assert len(replicas(psutil.Process(one.popen.pid))) == 1
        one.popen.terminate()
        assert one.popen.wait(60) == 0, one.log.read_text()
        told = one.log.read_text()
    assert psutil.wait_procs(all_of_it, 20)[1] == []
    assert "Traceback" not in told
    assert "SIGTERM received" not in told


@on_ray
def test_an_address_where_no_cluster_answers(tmp_path: Path) -> None:
    network(tmp_path, "twice")
    words = ["serve", "twice.onnx", "--engine", "ray", "--address", "127.0.0.1:1"]
    with started([sys.executable, "-m", "vermilion", *words], tmp_path, "nobody") as one:
        assert one.popen.wait(60) == 1
        told = one.log.read_text()
    assert "no Ray cluster answers" in told
    assert "hint: `ray status --address ADDRESS`" in told
    assert "Traceback" not in told


def test_without_ray_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(DeviceError, match="Ray Serve is not installed") as caught:
        check_packages()
    assert caught.value.hint == "pip install 'vermilion[serve-ray]'"


def test_cores_of_a_replica() -> None:
    free, told = Settings(), Settings(threads=3, instances=2)
    assert _cores_each([2, 2], told, 4) == 6
    assert [_cores_each([8, 8], free, most) for most in (1, 2, 3, 4, 16, 99)] == [8, 8, 4, 4, 1, 1]
    assert _cores_each([3, 3], free, 3) == 1  # two cores each would be room for two
    with pytest.raises(OptionError, match="`--replicas 3:2`"):
        Scaling(3, 2)


def test_what_a_model_raised_in_a_replica_is_raised_here() -> None:
    told = 'RuntimeError: vermilion-error: ["ModelError", "no", "a\\"b", "do"]\n  at line 3\n'
    error = _failure(f"Traceback\n{told}")
    assert (type(error), error.message, error.where, error.hint) == (ModelError, "no", 'a"b', "do")
    assert "the replicas do not start: x" in str(_failure("a\n x \n"))
