"""What goes wrong with a model that is served: its processes, its trial run, its outputs."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import psutil
import pytest

from commands import Command, command_line
from served import Asker, body, pid_of, process_of, serving, until, value, waiting
from tiny_llama import Tiny, write_folder
from vermilion.errors import ModelError, OptionError
from vermilion.serve import kserve as kserve_module
from vermilion.serve import network as network_module
from vermilion.serve.catalog import find_models
from vermilion.serve.metrics import Log
from vermilion.serve.run import ModelServer
from vermilion.serve.settings import Settings

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client")

NETWORKS = {
    "twice": "(float[n,4] x) => (float[n,4] y) { y = Add(x, x) }",
    # Rows whose largest number is positive; the file says that it gives all of them.
    "some": """(float[n,4] x) => (float[n,4] y) {
        most = ReduceMax<axes = [1], keepdims = 0>(x) nothing = Sub(most, most)
        is_kept = Greater(most, nothing) y = Compress<axis = 0>(x, is_kept) }""",
    "odd": "(float[n,4] x) => (float[n,4] y, float[n,4] z) { z = Log(x) y = Div(x, x) }",
    "pair": "(float[n,a] x, float[n,b] y) => (float[n,c] z) { z = Add(x, y) }",
    "texts": "(string[n] x) => (string[n] y) { y = Identity(x) }",
    "free": "(float x) => (float y) { y = Neg(x) }",
}
# It runs with multiples of 7 alone.
SEVEN = "seven (float[n,k] x) => (float[m,7] y) { y = Reshape(x, shape) }"
# Whatever it is given, it reads beyond the end of three numbers.
NEVER = """never (float[n] x) => (float[n] y) {
    zero = Mul(x, none) big = Add(zero, far) at = Cast<to = 7>(big) y = Gather(three, at) }"""


def write(folder: Path, name: str, text: str, **numbers: Any) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]>\n{text}')
    for one, array in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(array), one))
    if name == "free":  # of any rank
        for tensor in (*model.graph.input, *model.graph.output):
            tensor.type.tensor_type.ClearField("shape")
    file = folder / f"{name}.onnx"
    onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for name, text in NETWORKS.items():
        write(folder, name, f"{name} {text}")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ModelServer]:
    words = [folder / f"{name}.onnx@onnxruntime" for name in NETWORKS]
    with serving(*words, time_limit_s=30.0, threads=1) as server:
        yield server


@pytest.fixture
def ask(server: ModelServer) -> Iterator[Asker]:
    asker = Asker(server)
    yield asker
    asker.close()


def states(ask: Asker) -> dict[str, tuple[str, str]]:
    rows = ask("/v2/repository/index", b"")[1]
    return {row["name"]: (row["state"], row["reason"]) for row in rows}


def test_a_process_that_ends_with_nothing_to_do_is_started_again(
    server: ModelServer, ask: Asker
) -> None:
    before = value(server, 'vermilion_worker_restarts_total{model="twice"}')
    process = process_of(server, "twice")
    process.kill()
    until(lambda: pid_of(server, "twice") != process.pid)  # and nobody has asked
    until(lambda: states(ask)["twice"] == ("READY", ""))
    assert value(server, 'vermilion_worker_restarts_total{model="twice"}') == before + 1
    assert ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 200


def test_a_model_whose_processes_are_gone_is_not_ready(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "MOST_DEATHS", 2)
    file = Path(shutil.copy(folder / "twice.onnx", tmp_path / "lost.onnx"))
    with serving(f"{file}@onnxruntime", threads=1) as server:
        ask = Asker(server)
        assert states(ask)["lost"] == ("READY", "")
        assert value(server, 'vermilion_model_ready{model="lost"}') == 1
        data = file.read_bytes()
        file.unlink()
        process_of(server, "lost").kill()
        until(lambda: states(ask)["lost"][0] == "UNAVAILABLE")
        assert "none of its processes is left" in states(ask)["lost"][1]
        assert value(server, 'vermilion_model_ready{model="lost"}') == 0
        assert ask("/v1/models")[1]["data"] == []
        for path in ("/v2/health/ready", "/v2/models/lost/ready"):
            assert ask(path)[0] == 503
        assert ask("/v2/repository/index", {"ready": True})[1] == []
        assert ask("/v2/models/lost/infer", body([1] * 4, [1, 4]))[0] == 503
        file.write_bytes(data)
        assert ask("/v2/repository/models/lost/load", b"")[0] == 200
        assert ask("/v2/models/lost/infer", body([1] * 4, [1, 4]))[0] == 200
        assert value(server, 'vermilion_model_ready{model="lost"}') == 1
        ask.close()


def test_one_of_two_processes_goes_on_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "MOST_DEATHS", 1)
    file = Path(shutil.copy(folder / "twice.onnx", tmp_path / "half.onnx"))
    with serving(f"{file}@onnxruntime", threads=1, instances=2) as server:
        served: Any = server.catalog.version("half").served
        file.unlink()
        psutil.Process(served.processes[0]).kill()
        until(lambda: served._left == 1)
        ask = Asker(server)
        assert states(ask)["half"] == ("READY", "")
        for _ in range(4):
            assert ask("/v2/models/half/infer", body([1] * 4, [1, 4]))[0] == 200
        ask.close()


def test_outputs_that_have_not_a_row_for_each_are_not_shared_out(server: ModelServer) -> None:
    rows = [[1, 2, 3, 4], [-1, -2, -3, -4], [5, 6, 7, 8], [-9, -9, -9, -9], [0, 0, 1, 0]]
    served: Any = server.catalog.version("some").served
    assert served.is_batched  # what was drawn for its trial had all rows
    process = process_of(server, "some")
    askers = [Asker(server) for _ in rows]
    process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(rows)) as pool:
            futures = []
            for asker, row in zip(askers, rows, strict=True):
                futures.append(pool.submit(asker, "/v2/models/some/infer", body(row, [1, 4])))
                time.sleep(0.0 if futures[1:] else 0.5)  # the first is with the process, alone
            until(lambda: waiting(server, "some") == 4)
            process.send_signal(signal.SIGCONT)
            found = [future.result() for future in futures]
    finally:
        process.send_signal(signal.SIGCONT)
    for row, (status, told, _) in zip(rows, found, strict=True):
        assert status == 200
        wanted = row if max(row) > 0 else []  # as it gives it alone
        assert told["outputs"][0]["data"] == wanted
    assert not served.is_batched
    assert askers[0]("/v2/models/some/config")[1]["max_batch_size"] == 0
    for asker in askers:
        asker.close()


def test_no_thread_ends_without_a_word(
    server: ModelServer, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # of what is done for a request itself, too
        patch.setattr(kserve_module, "wanted_outputs", lambda *_: 1 / 0)
        status, told, headers = ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))
    words = f"this is a fault of the server; its log, {headers['x-request-id']}"
    assert (status, told["error"]) == (500, words)
    for error in (ValueError("rows and file do not fit"), KeyError("y"), TypeError()):

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(network_module, "read_values", broken)
            status, told, _ = ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))
        assert (status, told["error"]) == (500, "this is a fault of the server")
        assert ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 200
    with monkeypatch.context() as patch:  # where nothing can be told of one request
        patch.setattr(network_module.JobQueue, "take", broken)
        until(lambda: states(ask)["twice"][0] == "UNAVAILABLE")
    assert states(ask)["twice"][1] == "none of its processes is left: a fault of the server"
    for name in NETWORKS:
        assert ask(f"/v2/repository/models/{name}/load", b"")[0] == 200
    assert ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 200


def test_a_model_that_fails_its_trial_run_is_not_ready(tmp_path: Path) -> None:
    numbers = {"none": [np.float32(0)], "far": [np.float32(1e6)], "three": np.ones(3, np.float32)}
    file = write(tmp_path, "never", NEVER, **numbers)
    places = find_models([f"{file}@onnxruntime"])
    server = ModelServer(places, Settings(port=0, threads=1), Log(None))
    with pytest.raises(ModelError, match="its trial run failed: none of"):
        server.run()
    version = server.catalog.version("never")
    assert version.state == "UNAVAILABLE"
    assert "its trial run failed" in version.reason
    assert value(server, 'vermilion_model_ready{model="never"}') == 0


def test_a_model_is_tried_with_sizes_that_its_graph_allows(tmp_path: Path) -> None:
    file = write(tmp_path, "seven", SEVEN, shape=[-1, 7])
    with serving(f"{file}@onnxruntime", threads=1) as server:
        ask = Asker(server)
        assert states(ask)["seven"] == ("READY", "")
        assert ask("/v2/models/seven/infer", body([1] * 14, [2, 7]))[1]["outputs"][0]["shape"] == [
            2, 7
        ]  # fmt: skip
        assert ask("/v2/models/seven/infer", body([1] * 8, [1, 8]))[0] == 400
        ask.close()


def test_a_language_model_that_fails_its_trial_is_not_ready(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", Tiny())
    weights = folder / "model.onnx.data"
    weights.write_bytes(np.full(weights.stat().st_size // 4, np.nan, np.float32).tobytes())
    settings = Settings(port=0, threads=1, cache_tokens=64, cache_dir=tmp_path / "cache")
    server = ModelServer(find_models([str(folder)]), settings, Log(None))
    thread = threading.Timer(60.0, server.stop)
    thread.start()
    with pytest.raises(ModelError, match="its trial run failed"):
        server.run()
    thread.cancel()
    assert server.catalog.version("tiny").state == "UNAVAILABLE"


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_json_has_no_words_for(server: ModelServer, ask: Asker) -> None:
    asked = body([0, 1, 1, 1], [1, 4])
    status, text, _ = ask("/v2/models/odd/infer", {**asked, "outputs": [{"name": "y"}]}, raw=True)
    assert (status, strict(text)["outputs"][0]["data"]) == (200, [None, 1, 1, 1])
    status, told, _ = ask("/v2/models/odd/infer", {**asked, "outputs": [{"name": "z"}]})
    assert (status, "binary_data" in told["error"]) == (400, True)
    binary = {"name": "z", "parameters": {"binary_data": True}}
    status, data, headers = ask("/v2/models/odd/infer", {**asked, "outputs": [binary]})
    length = int(headers["inference-header-content-length"])
    assert np.frombuffer(data[length:], np.float32).tolist() == [-np.inf, 0, 0, 0]
    few = {"name": "y", "parameters": {"classification": 2}}
    status, told, _ = ask("/v2/models/odd/infer", {**body([], [0, 4]), "outputs": [few]})
    assert (status, told["outputs"][0]["shape"]) == (200, [0, 2])


def test_requests_that_fit_the_file_and_not_the_model(ask: Asker) -> None:
    two = [*body([1] * 2, [1, 2])["inputs"], *body([1] * 3, [1, 3], "y")["inputs"]]
    status, told, _ = ask("/v2/models/pair/infer", {"inputs": two})
    assert (status, bool(told["error"])) == (400, True)
    for shape in ([2, 2], [1] * 30, [], [0, 7]):
        count = int(np.prod(shape))
        told = ask("/v2/models/free/infer", body([1] * count, shape))
        assert told[0] == 200, (shape, told)
    for shape in ([1] * 70, [1 << 62, 1 << 62, 0], [0, 1 << 39], [10**40]):
        assert ask("/v2/models/free/infer", body([1] * (0 not in shape), shape))[0] == 400
    assert ask("/v2/models/twice/infer", body([1] * 4, [1, 4]))[0] == 200


def test_letters_that_are_halves(ask: Asker) -> None:
    lone = "a\ud800"
    asked = {"id": lone, **body([1] * 4, [1, 4])}
    assert ask("/v2/models/twice/infer", asked)[:2][1]["id"] == lone
    assert ask("/v2/models/texts/infer", body([lone], [1], "x", "BYTES"))[0] == 400
    for changed in (body([1] * 4, [1, 4], lone), {**asked, "outputs": [{"name": lone}]}):
        status, told, _ = ask("/v2/models/twice/infer", changed)
        assert (status, "ud800" in repr(told["error"])) == (400, True)
    status, told, _ = ask("/v1/chat/completions", {"model": lone, "messages": [
        {"role": "user", "content": "a"}]})  # fmt: skip
    assert (status, "ud800" in repr(told["error"])) == (404, True)


def test_who_has_left_is_not_computed_for(server: ModelServer) -> None:
    process = process_of(server, "twice")
    gone, here = Asker(server), Asker(server)
    queue = server.catalog.version("twice").served._queue  # type: ignore[union-attr]
    before = value(server, 'vermilion_batch_size_sum{model="twice"}')
    process.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(here, "/v2/models/twice/infer", body([1] * 4, [1, 4]))
            time.sleep(0.5)  # it is with the process
            gone.send("/v2/models/twice/infer", body([1] * 12, [3, 4]))
            until(lambda: waiting(server, "twice") == 1)
            gone.close()
            until(lambda: not queue._waiting[0].is_wanted)
            process.send_signal(signal.SIGCONT)
            assert first.result()[0] == 200
    finally:
        process.send_signal(signal.SIGCONT)
    assert value(server, 'vermilion_batch_size_sum{model="twice"}') == before + 1
    here.close()


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_wrong_use_is_told_in_one_line(command: Command, folder: Path, tmp_path: Path) -> None:
    model, chat = folder / "twice.onnx", tmp_path / "chat"
    chat.mkdir()
    (chat / "genai_config.json").write_text("{}")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\xff")
    for words, told in (
        ([f"{chat}@hip"], "not on `hip`"),
        ([chat, model, "--dim", "n=4"], "`--dim n` is for ONNX files"),
        ([model, "--max-body", "nan"], "`--max-body` is nan"),
        ([model, "--max-body", "inf"], "`--max-body` is inf"),
        ([model, "--max-delay", "1e300"], "`--max-delay` is"),
        ([model, "--drain", "inf"], "`--drain` is inf"),
        ([model, "--time-limit", "inf"], "`--time-limit` is inf"),
        ([model, "--time-limit", "0"], "`--time-limit` is more than 0"),
        ([model, "--keys", tmp_path / "none"], "the keys cannot be read"),
        ([model, "--keys", binary], "it is no UTF-8"),
        ([model, "--tls-cert", binary, "--tls-key", binary], "cannot be used"),
        ([model, "--tls-cert", tmp_path / "none", "--tls-key", binary], "cannot be used"),
        ([model, "--tls-cert", binary], "come together"),
    ):
        done = command("serve", *words, "--port", "0")
        assert (done.code, told in done.err, "fault in" in done.err) == (2, True, False), done
    for words, told in (
        (["http://[::1"], "no address"),
        (["--key-file", binary], "it is no UTF-8"),
        (["--key-file", tmp_path / "none"], "cannot be read"),
        (["--every", "inf"], "`--every`"),
        (["--count", "-1"], "`--count`"),
    ):
        done = command("top", *words)
        assert (done.code, told in done.err, "fault in" in done.err) == (2, True, False), done


def test_https(folder: Path, tmp_path: Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("this system has no openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
    subprocess.run([program, *words, "-out", str(certificate)], check=True, capture_output=True)
    settings = {"tls_certificate": certificate, "tls_key": key, "load_all": False}
    with serving(folder / "twice.onnx", **settings) as server:
        assert server.url.startswith("https://")
        known = ssl.create_default_context(cafile=certificate)
        with urllib.request.urlopen(f"{server.url}/v2/health/live", context=known) as reply:
            assert json.loads(reply.read()) == {"live": True}
    locked = tmp_path / "locked.pem"
    words = ["rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run([program, *words], check=True, capture_output=True)
    wrong = Settings(port=0, tls_certificate=certificate, tls_key=locked)
    with pytest.raises(OptionError, match="cannot be used"):
        ModelServer(find_models([str(folder / "twice.onnx")]), wrong, Log(None))
