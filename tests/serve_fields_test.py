"""Every field of every request with every kind of value: told as wrong, or answered, or not there.

Nothing is told as a fault of the server, and no process ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from request_bodies import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    INFER,
    RERANK,
    TEXTS,
    changed_bodies,
)
from serve_encoder_test import SCORES, VECTORS
from serve_encoder_test import write as write_encoder
from served import Asker, network, serving
from tiny_llama import Tiny, write_folder
from vermilion.serve.run import ModelServer

pytestmark = pytest.mark.needs(
    "starlette", "uvicorn", "prometheus_client", "tokenizers", "llguidance"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("all")
    words: list[str | Path] = [
        f"{network(folder, name)}@onnxruntime" for name in ("twice", "kinds")
    ]
    words += [f"{write_encoder(folder / 'vectors', VECTORS)}@onnxruntime"]
    words += [f"{write_encoder(folder / 'scores', SCORES)}@onnxruntime"]
    words += [write_folder(folder / "tiny", Tiny(bits=4, context=128, end=319))]
    settings = {"threads": 1, "cache_tokens": 1024, "time_limit_s": 60.0}
    with serving(*words, cache_dir=folder / "cache", **settings) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "model": "tiny", "logit_bias": {"65": 1}}),
        ("/v1/completions", {**COMPLETION, "model": "tiny", "logit_bias": None}),
        ("/v1/embeddings", {**EMBEDDINGS, "model": "vectors"}),
        ("/v1/rerank", {**RERANK, "model": "scores"}),
        ("/v2/models/twice/infer", INFER),
        ("/v2/models/kinds/infer", TEXTS),
        ("/v2/repository/index", {"ready": True}),
        ("/v2/repository/models/twice/load", {"parameters": {"unload_dependents": True}}),
    ],
)
def test_every_field_with_every_value(server: ModelServer, path: str, body: Any) -> None:
    ask = Asker(server)
    processes = running(server)
    assert ask(path, body)[0] == 200
    counts: dict[int, int] = {}
    for changed in changed_bodies(body):
        if is_long(changed):
            continue
        status, told, _ = ask(path, json.dumps(changed).encode())
        assert status == 200 or 400 <= status < 500, (changed, status, told)
        counts[status] = counts.get(status, 0) + 1
    assert counts[400] > 10
    assert counts[200] > 1
    assert ask(path, body)[0] == 200
    assert running(server) == processes
    ask.close()


def is_long(body: Any) -> bool:
    """Say whether a text would be written as long as the context is: nobody waits for that here."""
    if "max_completion_tokens" in body:
        return not any(body[name] for name in ("max_completion_tokens", "max_tokens"))
    return "prompt" in body and not body["max_tokens"]


def running(server: ModelServer) -> dict[str, Any]:
    found = {}
    for version in server.catalog.all():
        served: Any = getattr(version.served, "network", version.served)
        found[version.name] = getattr(served, "processes", None) or served.process
    return found
