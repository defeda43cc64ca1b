"""OpenAI's API over HTTP: what its clients ask for.

Source: OpenAI's API reference, as published; `/v1/rerank` has the form of Jina's and Cohere's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vermilion.errors import VermilionError
from vermilion.serve.bodies import JsonResponse, body_of, json_bytes, object_of, unless_gone
from vermilion.serve.catalog import Catalog
from vermilion.serve.encoder import Encoder, read_embeddings, read_rerank
from vermilion.serve.language import LanguageModel
from vermilion.serve.openai_answers import Answer, Choice
from vermilion.serve.openai_forms import Asked, read_chat, read_completion
from vermilion.serve.refusals import NotServedError, words_of
from vermilion.serve.settings import Settings

Event = Mapping[str, Any]

_DONE = b"data: [DONE]\n\n"


class OpenAI:
    """The routes below `/v1`."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog, self._settings = catalog, settings
        self._begin = int(time.time())

    def routes(self) -> list[Route]:
        """Return all of them."""
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/rerank", self.rerank, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """List the models that answer."""
        del request
        names = [one.name for one in self._catalog.all() if one.state == "READY"]
        rows = [self._row(name) for name in dict.fromkeys(names)]
        return JsonResponse({"object": "list", "data": rows})

    async def model(self, request: Request) -> Response:
        """Describe a model."""
        name = request.path_params["model"]
        self._catalog.versions(name)
        return JsonResponse(self._row(name))

    async def chat(self, request: Request) -> Response:
        """Write the next message of a conversation."""
        return await self._write(request, read_chat(await self._body(request)), is_chat=True)

    async def completions(self, request: Request) -> Response:
        """Go on with a text."""
        return await self._write(request, read_completion(await self._body(request)), is_chat=False)

    async def embeddings(self, request: Request) -> Response:
        """Return the vectors of texts."""
        asked = read_embeddings(await self._body(request))
        encoder = self._served(request, asked.model, Encoder, "no encoder")
        assert isinstance(encoder, Encoder)
        return JsonResponse(await unless_gone(request, encoder.embeddings(asked)))

    async def rerank(self, request: Request) -> Response:
        """Return how well documents answer a question."""
        asked = read_rerank(await self._body(request))
        encoder = self._served(request, asked.model, Encoder, "no encoder")
        assert isinstance(encoder, Encoder)
        return JsonResponse(await unless_gone(request, encoder.rerank(asked)))

    async def _write(self, request: Request, asked: Asked, *, is_chat: bool) -> Response:
        model = self._served(request, asked.model, LanguageModel, "no language model")
        assert isinstance(model, LanguageModel)
        choices = [Choice([echo]) for echo in asked.echoes for _ in range(asked.count)]
        answer = Answer(asked.model, is_chat, asked.logprobs, asked.has_tools, choices)
        events = _events(model, asked, answer)
        if asked.is_stream:
            # What refuses a request is told with its status, before anything is sent.
            first = await unless_gone(request, anext(events, None))
            pieces = _pieces(answer, asked, first, events)
            return StreamingResponse(pieces, media_type="text/event-stream")

        async def collected() -> None:
            async for _ in events:
                pass

        await unless_gone(request, collected())
        return JsonResponse(answer.whole())

    async def _body(self, request: Request) -> dict[str, Any]:
        return object_of(await body_of(request, self._settings.max_body_bytes))

    def _served(self, request: Request, name: str, kind: type, words: str) -> object:
        request.scope["vermilion"]["model"] = name if name in self._catalog.names() else ""
        served = self._catalog.served(name)
        if not isinstance(served, kind):
            raise NotServedError(f"`{name}` is {words}")
        return served

    def _row(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._begin, "owned_by": "vermilion"}


async def _events(
    model: LanguageModel, asked: Asked, answer: Answer
) -> AsyncIterator[tuple[int, Event]]:
    """Yield what comes of all prompts, by the number of the text; note it in the answer."""
    merged: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue()

    async def one(number: int) -> None:
        try:
            async for event in model.events(asked.prompts[number]):
                merged.put_nowait((number, event))
            merged.put_nowait(None)
        except VermilionError as error:
            merged.put_nowait(error)

    tasks = [asyncio.ensure_future(one(number)) for number in range(len(asked.prompts))]
    left = len(tasks)
    try:
        while left:
            found = await merged.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
                continue
            number, event = found
            if "prompt_tokens" in event:
                answer.prompt_tokens[number] = event["prompt_tokens"]
                continue
            at = number * asked.count + event["choice"]
            answer.choices[at].add(event)
            yield at, event
    finally:
        for task in tasks:
            task.cancel()


async def _pieces(
    answer: Answer,
    asked: Asked,
    first: tuple[int, Event] | None,
    events: AsyncIterator[tuple[int, Event]],
) -> AsyncIterator[bytes]:
    """Yield server-sent events."""
    if answer.is_chat:
        for at in range(len(answer.choices)):
            yield _sent(answer.opening(at))
    elif any(asked.echoes):
        for at, choice in enumerate(answer.choices):
            row = {"index": at, "text": choice.text[0], "logprobs": None, "finish_reason": None}
            yield _sent({**answer.closing(), "choices": [row], "usage": None})
    try:
        if first is not None and (piece := answer.piece(*first)) is not None:
            yield _sent(piece)
        async for at, event in events:
            if (piece := answer.piece(at, event)) is not None:
                yield _sent(piece)
        if asked.has_usage:
            yield _sent(answer.closing())
        yield _DONE
    except VermilionError as error:
        yield _sent({"error": {"message": words_of(error), "type": "server_error", "code": None}})


def _sent(piece: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(piece) + b"\n\n"
