"""An encoder that is served: texts → tokens here, vectors in the network's processes.

Vectors are means over tokens, or the first token's, as the folder's `1_Pooling/config.json` says
(the form of sentence-transformers), and of length 1. A model that gives each text a score is a
cross-encoder: it is asked for the order of documents.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.tokenizer import check_library
from vermilion.serve.metrics import Metrics
from vermilion.serve.network import Network
from vermilion.serve.openai_forms import Given
from vermilion.serve.refusals import FaultError, NotServedError, WrongRequestError
from vermilion.serve.settings import Settings

Floats = NDArray[np.float32]
Result = TypeVar("Result")

MOST_TEXTS = 2048
# Sequences are padded to a multiple of so many tokens, so that they share batches.
_STEP = 16
_MOST_TOKENS = 512  # where the folder does not say it
_LEAST_SCORE = 700.0  # below its negative, `exp` of the opposite is no float


@dataclass(frozen=True)
class EmbeddingsAsked:
    """Texts, or tokens, whose vectors are wanted."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    is_base64: bool
    dimensions: int | None


@dataclass(frozen=True)
class RerankAsked:
    """Documents to be put in order by a question."""

    model: str
    query: str
    documents: tuple[str, ...]
    top: int
    has_texts: bool


def read_embeddings(body: Mapping[str, Any]) -> EmbeddingsAsked:
    """Read a body for `/v1/embeddings`. Raises: WrongRequestError."""
    given, value = Given(body), body.get("input")
    rows: list[Any] = [value] if isinstance(value, str) or _is_tokens(value) else value or []
    is_plain = isinstance(rows, list) and all(isinstance(r, str) or _is_tokens(r) for r in rows)
    if not (is_plain and rows):
        raise WrongRequestError("`input` is a text, a list of tokens, or a list of such")
    if len(rows) > MOST_TEXTS:
        raise WrongRequestError(f"`input` has {len(rows)} texts: {MOST_TEXTS} at most")
    word = body.get("encoding_format") or "float"
    if word not in ("float", "base64"):
        raise WrongRequestError("`encoding_format` is `float` or `base64`")
    texts = tuple(row if isinstance(row, str) else tuple(row) for row in rows)
    return EmbeddingsAsked(
        given.text("model"), texts, word == "base64", given.whole("dimensions", None, 1, 1 << 20)
    )


def read_rerank(body: Mapping[str, Any]) -> RerankAsked:
    """Read a body for `/v1/rerank`. Raises: WrongRequestError."""
    given, rows = Given(body), body.get("documents")
    if not isinstance(rows, list) or not rows or len(rows) > MOST_TEXTS:
        raise WrongRequestError(f"`documents` is a list of 1 to {MOST_TEXTS} texts")
    found = [row.get("text") if isinstance(row, dict) else row for row in rows]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise WrongRequestError("`documents` is a list of texts")
    top = given.whole("top_n", len(texts), 1, 1 << 31)
    has_texts = given.flag("return_documents")
    return RerankAsked(given.text("model"), given.text("query"), tuple(texts), top or 1, has_texts)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


class Encoder:
    """A tokenizer before a network."""

    kind = "encoder"

    def __init__(
        self, name: str, folder: Path, target: str, settings: Settings, metrics: Metrics
    ) -> None:
        """Open both. Raises: VermilionError of the kind that says why it cannot be."""
        check_library()
        from tokenizers import Tokenizer

        self.name, self._metrics = name, metrics
        self._at_a_time = min(settings.max_batch, settings.max_queue)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(
                f"the tokenizer cannot be read: {error}", where=str(folder / "tokenizer.json")
            ) from error
        self._tokenizer.no_padding()
        self._most = _most_tokens(folder)
        self._tokenizer.enable_truncation(self._most)
        self._uses_first = _uses_first(folder)
        file = next(
            folder / one for one in ("model.onnx", "onnx/model.onnx") if (folder / one).is_file()
        )
        self.network = Network(name, file, target, settings, metrics)
        names = {tensor.name for tensor in self.network.about.inputs}
        if not {"input_ids"} <= names <= {"input_ids", "attention_mask", "token_type_ids"}:
            self.network.close()
            raise UnsupportedError(
                f"an encoder's inputs are `input_ids`, `attention_mask` and `token_type_ids`; this "
                f"one's are {', '.join(sorted(names))}",
                where=str(file),
                hint="serve the file itself, as a network",
            )
        self._names = names

    @property
    def is_ready(self) -> bool:
        """Whether texts are encoded."""
        return self.network.is_ready

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self.network.is_open

    @property
    def reason(self) -> str:
        """Why it is not ready; nothing where it is."""
        return self.network.reason

    def close(self, *, now: bool = False) -> None:
        """End the network's processes."""
        self.network.close(now=now)

    async def embeddings(self, asked: EmbeddingsAsked) -> dict[str, Any]:
        """Return what `/v1/embeddings` answers."""
        rows = [self._encoded(text) for text in asked.inputs]
        found = await self._all_of(self._vector, rows)
        data = []
        for at, vector in enumerate(found):
            if asked.dimensions is not None and asked.dimensions > len(vector):
                raise WrongRequestError(f"a vector has {len(vector)} dimensions, no more")
            if asked.dimensions is not None:
                vector = _unit(vector[: asked.dimensions])
            if not (asked.is_base64 or np.isfinite(vector).all()):
                raise WrongRequestError(
                    f"the vector of text {at} has NaN or infinities, which are no JSON",
                    hint="`encoding_format` `base64` has them",
                )
            plain = vector.astype("<f4")
            value = (
                base64.b64encode(plain.tobytes()).decode("ascii")
                if asked.is_base64
                else plain.tolist()
            )
            data.append({"object": "embedding", "index": at, "embedding": value})
        tokens = sum(len(row[0]) for row in rows)
        self._metrics.tokens(self.name, read=tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": asked.model, "usage": usage}

    async def rerank(self, asked: RerankAsked) -> dict[str, Any]:
        """Return what `/v1/rerank` answers."""
        rows = [self._encoded(asked.query, text) for text in asked.documents]
        scores = await self._all_of(self._score, rows)
        order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[: asked.top]
        results = [
            {
                "index": at,
                "relevance_score": scores[at],
                **({"document": {"text": asked.documents[at]}} if asked.has_texts else {}),
            }
            for at in order
        ]
        tokens = sum(len(row[0]) for row in rows)
        return {"model": asked.model, "results": results, "usage": {"total_tokens": tokens}}

    def _encoded(
        self, text: str | tuple[int, ...], second: str | None = None
    ) -> tuple[list[int], list[int]]:
        """Return a text's tokens, and which of two texts each is of."""
        if isinstance(text, tuple):
            if len(text) > self._most:
                raise WrongRequestError(f"{len(text)} tokens: the model reads {self._most}")
            most = self._tokenizer.get_vocab_size()
            if not all(0 <= token < most for token in text):
                raise WrongRequestError(f"a token is outside 0 to {most - 1}")
            return list(text), [0] * len(text)
        try:
            for one in (text, second or ""):
                one.encode()
            found = self._tokenizer.encode(text, second)
        except UnicodeEncodeError as error:
            raise WrongRequestError("a text has half of a letter (a lone surrogate)") from error
        if not found.ids:
            raise WrongRequestError("a text has no tokens")
        return found.ids, found.type_ids

    async def _all_of(
        self, one: Callable[..., Coroutine[Any, Any, Result]], rows: Sequence[Sequence[Any]]
    ) -> list[Result]:
        """Await one for each row, as many at a time as a batch has: a request is not a queue."""
        room = asyncio.Semaphore(self._at_a_time)

        async def within(row: Sequence[Any]) -> Result:
            async with room:
                return await one(*row)

        tasks = [asyncio.ensure_future(within(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _run(self, tokens: Sequence[int], types: Sequence[int]) -> Mapping[str, Any]:
        length = min(-(-len(tokens) // _STEP) * _STEP, max(self._most, len(tokens)))
        rows = {"input_ids": tokens, "attention_mask": [1] * len(tokens), "token_type_ids": types}
        inputs = {}
        for tensor in self.network.about.inputs:
            row = np.zeros((1, length), tensor.dtype)
            row[0, : len(tokens)] = rows[tensor.name]
            inputs[tensor.name] = row
        if "attention_mask" not in self._names:
            inputs = {name: row[:, : len(tokens)] for name, row in inputs.items()}
        return await self.network.infer(inputs)

    async def _vector(self, tokens: Sequence[int], types: Sequence[int]) -> Floats:
        found = await self._run(tokens, types)
        names = [tensor.name for tensor in self.network.about.outputs]
        if "sentence_embedding" in found:
            return _unit(found["sentence_embedding"][0])
        states = next((found[name] for name in names if found[name].ndim == 3), None)
        if states is None:
            raise NotServedError(f"`{self.name}` has no vector for each token")
        own = states[0, : len(tokens)].astype(np.float32)
        return _unit(own[0] if self._uses_first else own.mean(axis=0))

    async def _score(self, tokens: Sequence[int], types: Sequence[int]) -> float:
        found = await self._run(tokens, types)
        name = self.network.about.outputs[0].name
        if found[name].size != 1:
            raise NotServedError(f"`{self.name}` gives no score for two texts")
        score = float(found[name].reshape(-1)[0])
        if math.isnan(score):
            raise FaultError("the model's score of a document is NaN")
        return 1 / (1 + math.exp(-score)) if score > -_LEAST_SCORE else 0.0


def _unit(vector: Floats) -> Floats:
    plain = vector.astype(np.float32)
    with np.errstate(all="ignore"):  # what is no number is told where the vector is written
        length = float(np.linalg.norm(plain))
        return plain / np.float32(length) if length else plain


def _json_of(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (ValueError, OSError) as error:
        raise ModelError(f"this is no JSON: {error}", where=str(file)) from error
    return found if isinstance(found, dict) else {}


def _most_tokens(folder: Path) -> int:
    sizes = [
        _json_of(folder / "sentence_bert_config.json").get("max_seq_length"),
        _json_of(folder / "tokenizer_config.json").get("model_max_length"),
        _json_of(folder / "config.json").get("max_position_embeddings"),
    ]
    known = [size for size in sizes if type(size) is int and 0 < size < 1 << 20]
    return min(known, default=_MOST_TOKENS)


def _uses_first(folder: Path) -> bool:
    return bool(_json_of(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))
