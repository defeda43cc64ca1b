"""`vermilion serve` for a long time, under all that clients and the system do to it.

    python bench/serve_soak.py [--requests 100000] [--kills 20] [--connections 24] [--seed 1]

A server of two networks and a small language model is asked over many connections: with random
sizes, in JSON and in bytes, for texts whole and piece by piece. Some clients leave before the
answer or in the middle of a body, some bodies are malformed, and worker processes are killed. Held:

- what was accepted is answered, and rightly: rows as NumPy computes them, texts as they were before
- no request takes more than a minute, what is wrong is told 4xx, and nothing is told 5xx
- more than may wait is told 429 with `Retry-After`, and comes again
- the server's memory, threads and open files do not grow from the second quarter to the last, nor
  do those of a worker's life
- at the end nothing waits, SIGTERM ends the server with exit code 0, and nothing is left behind

Exit code 1 where one of these does not hold. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]

from serve_bench import Client, free_port, kserve_request, request_of  # noqa: E402

from served import mutated, network  # noqa: E402
from tiny_llama import Tiny, write_folder  # noqa: E402

MOST_WAITING = 12
_LIMIT_S = 60.0
_MODELS = 3
# How much more the server may have at the end: it keeps some of what it has had at once.
_MORE_BYTES = 16 << 20
_MORE_SHARE = 0.05
_MORE_FILES = 4
_LEAST_READINGS = 5
_STARTING_S = 6.0  # a process imports and opens, and has all that it will have


class BrokenError(Exception):
    """Something does not hold."""


@dataclass
class Tally:
    """What happened, by kind and status; what does not hold; what the server had, and when."""

    weights: np.ndarray
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    # Bytes, threads and files of each process, by its number, from time to time.
    readings: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    kills: int = 0
    left: int = 0  # requests that are still to be begun


class Soak:
    """The requests of one connection."""

    def __init__(self, port: int, tally: Tally, number: int, seed: int) -> None:
        self._port, self._tally = port, tally
        self._draw = random.Random(f"{seed} {number}")
        self._numbers = np.random.default_rng([seed, number])
        self._client = Client(port)

    async def run(self) -> None:
        """Ask until enough was asked."""
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._bytes, 40), (self._json, 20), (self._malformed, 15), (self._gone, 15),
            (self._text, 5), (self._pieces, 4), (self._text_gone, 1),
        ]  # fmt: skip
        works, weights = zip(*kinds, strict=True)
        while self._tally.left > 0:
            self._tally.left -= 1
            (work,) = self._draw.choices(works, weights)
            try:
                await asyncio.wait_for(work(), _LIMIT_S)
            except TimeoutError:
                self._broken(f"{work.__name__}: no answer in {_LIMIT_S:g} s")
            except (OSError, EOFError, ValueError, KeyError, BrokenError) as error:
                self._broken(f"{work.__name__}: {type(error).__name__}: {error}")
        self._client.leave()

    def _broken(self, words: str) -> None:
        self._tally.broken.append(words)
        self._client.leave()

    def _rows(self) -> tuple[str, np.ndarray]:
        name = self._draw.choice(("layer", "twice"))
        rows = self._draw.choice((1, 1, 1, 2, 3, 5, 8, 17, 40))
        width = 64 if name == "layer" else 4
        return name, self._numbers.standard_normal((rows, width)).astype(np.float32)

    async def _asked(self, kind: str, request: bytes) -> tuple[dict[str, str], bytes]:
        """Ask until it is accepted. Raises: BrokenError where it is refused otherwise."""
        while True:
            await self._client.send(request)
            status, headers, body = await self._client.answer()
            self._tally.counts[f"{kind} {status}"] += 1
            if status == 200:
                return headers, body
            if status != 429:
                raise BrokenError(f"{kind} {status}: {body[:200]!r}")
            if int(headers["retry-after"]) < 1:
                raise BrokenError("429 without a time to come back")
            await asyncio.sleep(0.02 + 0.1 * self._draw.random())

    async def _bytes(self) -> None:
        name, rows = self._rows()
        headers, body = await self._asked("bytes", kserve_request(name, self._port, {"x": rows}))
        start = int(headers["inference-header-content-length"])
        self._check(name, rows, np.frombuffer(body[start:], np.float32))

    async def _json(self) -> None:
        name, rows = self._rows()
        _, body = await self._asked("json", self._plain(name, rows))
        self._check(name, rows, np.array(json.loads(body)["outputs"][0]["data"], np.float32))

    def _plain(self, name: str, rows: np.ndarray) -> bytes:
        one = {"name": "x", "datatype": "FP32", "shape": rows.shape, "data": rows.tolist()}
        body = json.dumps({"inputs": [one]}).encode()
        return request_of(f"/v2/models/{name}/infer", self._port, body)

    def _check(self, name: str, rows: np.ndarray, found: np.ndarray) -> None:
        if name == "twice":
            is_right = np.array_equal(found.reshape(rows.shape), rows + rows)
        else:
            powers = np.exp(rows.astype(np.float64) @ self._tally.weights)
            wanted = powers / powers.sum(axis=1, keepdims=True)
            is_right = np.allclose(found.reshape(wanted.shape), wanted, atol=1e-5)
        if not is_right:
            raise BrokenError(f"{name} of {len(rows)} rows is wrong")

    async def _malformed(self) -> None:
        name, rows = self._rows()
        head, _, body = self._plain(name, rows[:2]).partition(b"\r\n\r\n")
        path = head.split()[1].decode()
        if self._draw.random() < 0.3:
            text = {"model": "chat", "prompt": "ab", "max_tokens": 2, "temperature": 0.5, "n": 1}
            path, body = "/v1/completions", json.dumps(text).encode()
        await self._client.send(request_of(path, self._port, mutated(body, self._draw)))
        status, _, told = await self._client.answer()
        self._tally.counts[f"malformed {status}"] += 1
        if not (status == 200 or 400 <= status < 500):
            raise BrokenError(f"malformed {status}: {told[:200]!r}")

    async def _gone(self) -> None:
        """Leave with part of the request sent, or all of it."""
        request = self._plain(*self._rows())
        share = self._draw.choice((0.1, 0.5, 0.9, 1.0, 1.0, 1.0))
        await self._client.send(request[: max(1, int(share * len(request)))])
        await asyncio.sleep(self._draw.choice((0.0, 0.0, 0.001, 0.01)))
        self._client.leave()
        self._tally.counts["gone"] += 1

    def _wish(self, **more: Any) -> tuple[tuple[str, int], bytes]:
        # Few texts, so that each comes many times: it is the same every time.
        prompt = "abc" * self._draw.randint(1, 40)
        new = self._draw.choice((1, 4, 9, 30))
        asked = {"model": "chat", "prompt": prompt, "max_tokens": new, "temperature": 0, **more}
        body = json.dumps(asked).encode()
        return (prompt, new), request_of("/v1/completions", self._port, body)

    async def _text(self) -> None:
        wish, request = self._wish()
        _, body = await self._asked("text", request)
        self._same(wish, json.loads(body)["choices"][0]["text"])

    async def _pieces(self) -> None:
        wish, request = self._wish(stream=True)
        _, body = await self._asked("pieces", request)
        lines = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
        if lines[-1] != "[DONE]":
            raise BrokenError(f"a stream ends with {lines[-1][:200]}")
        self._same(wish, "".join(json.loads(s)["choices"][0]["text"] for s in lines[:-1]))

    def _same(self, wish: tuple[str, int], text: str) -> None:
        if self._tally.texts.setdefault(wish, text) != text:
            raise BrokenError(f"the text of {wish} is another one than before")

    async def _text_gone(self) -> None:
        await self._client.send(self._wish(stream=True, max_tokens=200)[1])
        await asyncio.sleep(0.05 * self._draw.random())
        self._client.leave()
        self._tally.counts["text gone"] += 1


def workers(server: psutil.Process) -> list[psutil.Process]:
    """Return the processes that models run in."""
    with suppress(psutil.Error):  # one that ends at this moment
        return [p for p in server.children() if any("_worker" in word for word in p.cmdline())]
    return []


async def watched(server: psutil.Process, tally: Tally, requests: int, kills: int) -> None:
    """Kill workers at even distances, and note what all processes have."""
    draw = random.Random(7)
    while tally.left > 0:
        await asyncio.sleep(0.2)
        found = workers(server)
        for one in (server, *found):
            with suppress(psutil.Error), one.oneshot():
                row = (one.memory_info().rss, one.num_threads(), one.num_fds())
                if time.time() - one.create_time() > _STARTING_S:
                    tally.readings.setdefault(one.pid, []).append(row)
        is_due = requests - tally.left > requests * (tally.kills + 1) / (kills + 2)
        if is_due and tally.kills < kills and len(found) == _MODELS:  # all of them are there again
            draw.choice(found).kill()
            tally.kills += 1


async def soak(port: int, server: int, tally: Tally, options: argparse.Namespace) -> None:
    """Ask over all connections until enough was asked."""
    tally.left = options.requests
    clients = [Soak(port, tally, at, options.seed).run() for at in range(options.connections)]
    watching = watched(psutil.Process(server), tally, options.requests, options.kills)
    await asyncio.gather(*clients, watching)


def quarters(rows: list[tuple[int, int, int]]) -> np.ndarray | None:
    """Return the medians of the second quarter and of the last; None of few readings."""
    size = len(rows) // 4
    if size < _LEAST_READINGS:
        return None
    return np.array([np.median(part, axis=0) for part in (rows[size : 2 * size], rows[-size:])])


def check_growth(tally: Tally) -> None:
    """Note what grew from the second quarter of a process's life to the last."""
    for number, rows in tally.readings.items():
        found = quarters(rows)
        if found is None:
            continue
        first, last = found
        if last[0] - first[0] > max(_MORE_BYTES, _MORE_SHARE * first[0]):
            words = f"memory of {number} grew from {first[0] / 1e6:.1f} to {last[0] / 1e6:.1f} MB"
            tally.broken.append(words)
        for at, what in ((1, "threads"), (2, "files")):
            if last[at] - first[at] > _MORE_FILES:
                tally.broken.append(f"{what} of {number}: from {first[at]:g} to {last[at]:g}")


async def rest(port: int) -> dict[str, float]:
    """Return what still waits or runs, by the server's own numbers."""
    client = Client(port)
    await client.send(f"GET /metrics HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
    _, _, body = await client.answer()
    client.leave()
    names = ("vermilion_queue_length{", "vermilion_running_sequences{", "vermilion_model_ready{")
    rows = [line.rpartition(" ") for line in body.decode().splitlines() if line.startswith(names)]
    return {name: float(number) for name, _, number in rows}


async def come_to_rest(port: int, tally: Tally) -> None:
    """Wait until all models answer and nothing waits or runs."""
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        found = await rest(port)
        if all((number == 1) == ("ready" in name) for name, number in found.items()):
            return
        await asyncio.sleep(0.2)
    tally.broken.append(f"the server does not come to rest: {found}")


def write_models(folder: Path) -> list[str]:
    """Write the models; return the words for the command line."""
    words = [str(network(folder, "layer")), f"{network(folder, 'twice')}@onnxruntime"]
    write_folder(folder / "chat", Tiny(bits=4, context=512, end=319))
    return [*words, str(folder / "chat")]


def weights_of(folder: Path) -> np.ndarray:
    """Return what `layer` multiplies with."""
    (weights,) = onnx.load(folder / "layer.onnx").graph.initializer
    return onnx.numpy_helper.to_array(weights).astype(np.float64)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the server, ask it, end it; return what came of it."""
    port, models = free_port(), write_models(folder)
    tally = Tally(weights_of(folder))
    words = [sys.executable, "-m", "vermilion", "serve", *models, "--port", str(port),
             "--threads", "1", "--max-queue", str(MOST_WAITING), "--max-batch", "16",
             "--cache-tokens", "8192", "--cache-dir", str(folder / "cache")]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(folder)}
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(words, stderr=file, stdout=subprocess.DEVNULL, env=environment)
    try:
        while b'"event": "ready"' not in log.read_bytes():
            assert process.poll() is None, log.read_bytes()[-2000:]
            time.sleep(0.1)
        begin = time.monotonic()
        asyncio.run(soak(port, process.pid, tally, options))
        seconds = time.monotonic() - begin
        asyncio.run(come_to_rest(port, tally))
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        code = process.wait(_LIMIT_S)
        if code:
            tally.broken.append(f"the server ended with {code}: {log.read_bytes()[-500:]!r}")
        _, alive = psutil.wait_procs(below, 5)
        if alive:
            tally.broken.append(f"{len(alive)} processes are left behind")
    finally:
        process.kill()
        process.wait()
    faults = log.read_bytes().count(b'"event": "fault"')
    if faults:
        tally.broken.append(f"{faults} faults in the log")
    check_growth(tally)
    return report(tally, options, seconds, process.pid)


def report(
    tally: Tally, options: argparse.Namespace, seconds: float, server: int
) -> dict[str, Any]:
    """Return what happened; memory as it was in the second quarter and in the last."""
    told = sum(n for name, n in tally.counts.items() if "gone" not in name)
    found = {number: quarters(rows) for number, rows in tally.readings.items()}
    memory = {n: [round(mb, 1) for mb in q[:, 0] / 1e6] for n, q in found.items() if q is not None}
    return {
        "requests": options.requests, "answers": told, "kills": tally.kills,
        "seconds": round(seconds, 1), "answers_per_s": round(told / seconds, 1),
        "counts": dict(sorted(tally.counts.items())),
        "server_mb": memory.pop(server, None),
        "workers_mb": sorted(memory.values(), key=lambda pair: pair[0] - pair[1])[:3],
        "broken": Counter(tally.broken).most_common(20),
    }  # fmt: skip


def main() -> int:
    """Read the options and soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--connections", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve-soak-") as folder:
        found = run(options, Path(folder))
    print(json.dumps(found), flush=True)
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
