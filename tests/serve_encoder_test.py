"""Encoders behind OpenAI's API: vectors of texts, and documents in order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from served import Asker, serving
from vermilion.serve.run import ModelServer

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client", "openai", "tokenizers")
WORDS = ("[PAD]", "[UNK]", "a", "cat", "dog", "sleeps", "runs", "far", "away", "home")
TABLE = np.random.default_rng(3).standard_normal((len(WORDS), 8)).astype(np.float32)
INPUTS = "int64[n,s] input_ids, int64[n,s] attention_mask"
VECTORS = f"""e ({INPUTS}) => (float[n,s,8] states) {{ states = Gather(table, input_ids) }}"""
# Infinities of all texts.
NO_NUMBERS = f"""e ({INPUTS}) => (float[n,s,8] states) {{
    t = Gather(table, input_ids) z = Sub(t, t) states = Log(z) }}"""
# A score is how much of the second text is the word `cat`.
SCORES = f"""e ({INPUTS}) => (float[n,1] score) {{
    t = Gather(table, input_ids) one = Cast<to = 1>(attention_mask)
    axis = Constant<value_ints = [2]>()
    m = Unsqueeze(one, axis) w = Mul(t, m) p = ReduceSum(w, rows) score = MatMul(p, cat) }}"""


def write(folder: Path, text: str) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir()
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    cat = np.zeros((8, 1), np.float32)
    cat[0] = 1
    table = TABLE if "states" in text else np.eye(len(WORDS), 8, dtype=np.float32)[:, ::-1].copy()
    if "score" in text:
        table[:] = 0
        table[WORDS.index("cat"), 0] = 3
    arrays = {"table": table, "cat": cat, "rows": np.array([1], np.int64)}
    used = {name for node in model.graph.node for name in node.input}
    kept = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used]
    model.graph.initializer.extend(kept)
    if "score" in text:  # sums over tokens drop the axis
        next(n for n in model.graph.node if n.op_type == "ReduceSum").attribute.append(
            onnx.helper.make_attribute("keepdims", 0)
        )
    onnx.save(model, folder / "model.onnx")
    tokenizer = Tokenizer(
        models.WordLevel({w: at for at, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("encoders")
    words = [write(folder / "vectors", VECTORS), write(folder / "scores", SCORES)]
    words += [f"{write(folder / 'none', NO_NUMBERS)}@onnxruntime"]  # type: ignore[list-item]
    with serving(*words, cache_dir=folder / "cache", threads=1) as server:
        yield server


def vector(text: str) -> Any:
    tokens = [WORDS.index(word) if word in WORDS else 1 for word in text.split()]
    mean = TABLE[tokens].mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_vectors_of_texts(server: ModelServer) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        texts = ["a cat sleeps", "a dog " * 15, "unknown home"]
        found = client.embeddings.create(model="vectors", input=texts)
        assert [row.index for row in found.data] == [0, 1, 2]
        for row, text in zip(found.data, texts, strict=True):
            assert np.allclose(row.embedding, vector(text), atol=1e-6)
        assert found.usage.prompt_tokens == 3 + 30 + 2
        plain = client.embeddings.create(
            model="vectors", input=[2, 3, 5], encoding_format="float", dimensions=4
        )
        short = vector("a cat sleeps")[:4]
        assert np.allclose(plain.data[0].embedding, short / np.linalg.norm(short), atol=1e-6)
        for wrong in ([], [[]], [99], "", ["a", 3]):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(model="vectors", input=wrong)


def test_documents_in_order(server: ModelServer) -> None:
    ask = Asker(server)
    documents = ["a dog runs", "cat cat", "a cat", {"text": "home"}]
    asked = {"model": "scores", "query": "a", "documents": documents, "top_n": 3}
    status, found, _ = ask("/v1/rerank", {**asked, "return_documents": True})
    assert status == 200
    assert [row["index"] for row in found["results"]] == [1, 2, 0]
    scores = [row["relevance_score"] for row in found["results"]]
    assert np.allclose(scores, 1 / (1 + np.exp([-6, -3, 0])))
    assert found["results"][0]["document"]["text"] == "cat cat"
    assert ask("/v1/rerank", {**asked, "documents": []})[0] == 400
    assert ask("/v1/rerank", {**asked, "model": "vectors"})[0] == 404
    # Networks of encoders answer tensors, too.
    assert ask("/v2/models/vectors")[1]["outputs"][0]["shape"] == [-1, -1, 8]
    ask.close()


def test_more_texts_than_may_wait(server: ModelServer) -> None:
    ask = Asker(server)
    texts = ["a cat", "dog"] * 200
    status, found, _ = ask("/v1/embeddings", {"model": "vectors", "input": texts})
    assert (status, len(found["data"])) == (200, 400)
    assert np.allclose(found["data"][399]["embedding"], vector("dog"), atol=1e-6)
    status, found, _ = ask(
        "/v1/rerank", {"model": "scores", "query": "a", "documents": ["cat", "dog"] * 200}
    )
    assert (status, len(found["results"])) == (200, 400)
    ask.close()


def test_vectors_that_there_are_not(server: ModelServer) -> None:
    ask = Asker(server)
    asked = {"model": "none", "input": ["a cat", "dog"]}
    status, told, _ = ask("/v1/embeddings", asked)
    assert (status, "vector of text 0" in told["error"]["message"]) == (400, True)
    assert "base64" in told["error"]["message"]
    status, found, _ = ask("/v1/embeddings", {**asked, "encoding_format": "base64"})
    numbers = np.frombuffer(base64.b64decode(found["data"][0]["embedding"]), np.float32)
    assert (status, bool(np.isnan(numbers).all())) == (200, True)
    status, told, _ = ask("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": 9})
    assert (status, "8 dimensions" in told["error"]["message"]) == (400, True)
    ask.close()
