"""The process that a language model runs in (`vermilion.process`): it advances when it is asked.

Each message brings requests that join and names those that leave, and is answered with the tokens
of one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from vermilion.errors import ModelError, OptionError, VermilionError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.open_model import OwnModel, open_own_model, read_model_config
from vermilion.llm.pool import open_pool, token_bytes
from vermilion.serve.scheduler import Scheduler, fault_of, refusal
from vermilion.serve.sequence import Event, Text, Wish, check_bias

# Of the memory that is free, the cache may take so much; and no more texts of the whole context.
_SHARE = 0.25
_MOST_CONTEXTS = 64
# Where an engine does not say what a token takes.
_PLAIN_TOKENS = 1 << 15
# Tokens of the prompt that it is tried with.
_TRIED = 20
# What a text may become where its request does not say it.
_DEFAULT_NEW = 1024


class Worker:
    """The open model and the texts that are being written."""

    def open(
        self,
        path: str,
        threads: int,
        cache_tokens: int,
        most: int,
        chunk: int,
        keeps: bool,
        cache_dir: str | None,
    ) -> dict[str, Any]:
        """Open a model, make its cache and write a token, so that the first request is as fast."""
        options = EngineOptions(
            threads=threads, on_cpu=True, cache=None if cache_dir is None else Path(cache_dir)
        )
        self._model = model = open_own_model(read_model_config(Path(path)), options)
        tokens = cache_tokens or _cache_tokens(model)
        self._pool = open_pool(model.decoder, tokens)
        self._scheduler = Scheduler(self._pool, most=most, chunk=chunk, keeps=keeps)
        self._try()
        return {
            "engine": model.engine,
            "reason": model.reason,
            "context": model.decoder.context_length,
            "vocabulary": model.decoder.vocabulary_size,
            "is_chat": model.tokenizer.has_template,
            "cache_tokens": self._pool.capacity,
        }

    def advance(self, new: list[dict[str, Any]], left: list[str]) -> dict[str, Any]:
        """Take requests in and out, and carry out one step."""
        for request in left:
            self._scheduler.remove(request)
        events: list[Event] = []
        for asked in new:
            request = str(asked["request"])
            try:
                texts = self._texts(request, asked)
            except VermilionError as error:
                events.append(refusal(request, error))
                continue
            except Exception as error:  # what a library raises costs this request alone
                events.append(refusal(request, fault_of(error)))
                continue
            events.append({"request": request, "prompt_tokens": len(texts[0].prompt)})
            self._scheduler.add(texts)
        made, counts = self._scheduler.advance()
        return {
            "events": events + made,
            "read": counts.read,
            "cached": counts.cached,
            "step": counts.step,
            "step_s": counts.step_s,
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting,
            "used": self._pool.used,
        }

    def count(self, text: str) -> dict[str, Any]:
        """Return the tokens of a text."""
        return {"tokens": self._model.encode(text, as_chat=False)}

    def _texts(self, request: str, asked: Mapping[str, Any]) -> list[Text]:
        """Return the texts of a request. Raises: OptionError, ModelError, UnsupportedError."""
        model = self._model
        prompt = self._prompt(asked)
        context = model.decoder.context_length
        wish = wish_of(asked["wish"], min(context, self._pool.capacity) - len(prompt))
        if not prompt:
            raise OptionError("the prompt has no tokens")
        if len(prompt) >= context:
            raise OptionError(
                f"the prompt has {len(prompt):,} tokens; the model's context is {context:,}",
                hint="shorten it",
            )
        if wish.new > context - len(prompt):
            raise OptionError(
                f"the prompt has {len(prompt):,} tokens and {wish.new:,} are to follow; the "
                f"model's context is {context:,}",
                hint="shorten the prompt, or ask for fewer tokens",
            )
        check_bias(wish.bias, model.decoder.vocabulary_size)
        form = wish.form()
        guides = model.guides(form, wish.count) if form is not None else [None] * wish.count
        return [
            Text(
                request, choice, prompt, wish, model.ends.ends, model.tokenizer.create_stream(),
                model.tokenizer.decode, guides[choice],
            )
            for choice in range(wish.count)
        ]  # fmt: skip

    def _prompt(self, asked: Mapping[str, Any]) -> list[int]:
        model, vocabulary = self._model, self._model.decoder.vocabulary_size
        if "messages" in asked:
            try:
                text = model.tokenizer.apply_chat_template(
                    asked["messages"], tools=asked.get("tools") or None
                )
            except ModelError as error:  # of these messages, and not of the file
                raise OptionError(error.message, hint=error.hint) from error
            return model.encode(text, as_chat=False)
        if isinstance(asked["prompt"], str):
            return model.encode(asked["prompt"], as_chat=False)
        foreign = [token for token in asked["prompt"] if not 0 <= token < vocabulary]
        if foreign:
            raise OptionError(
                f"there is no token {foreign[0]}: the model has {vocabulary:,}, from 0"
            )
        return list(asked["prompt"])

    def _try(self) -> None:
        """Read a prompt of many tokens and one more, so that all programs have run.

        Raises: ModelError where it makes no numbers; OptionError where the cache is too small.
        """
        length = max(1, min(_TRIED, self._model.decoder.context_length - 1))
        token = self._model.ends.ends[0]
        room = self._pool.take(length, 1)
        try:
            rows = [self._pool.read(room, [token] * length, is_last=True)]
            rows.append(self._pool.step([room], [token])[0])
        finally:
            self._pool.give_back(room)
        if any(row is None or np.isnan(row).any() for row in rows):
            raise ModelError(
                "its trial run failed: what it makes of a prompt is not a number",
                hint="`vermilion llm chat` shows what it writes; copy the model again",
            )


def wish_of(given: Mapping[str, Any], room: int) -> Wish:
    """Return a wish as it came in a message; without a length, it is a common one."""
    known = dict(given)
    known["new"] = min(_DEFAULT_NEW, max(1, room)) if known.get("new") is None else known["new"]
    known["bias"] = tuple((int(token), float(bias)) for token, bias in known.get("bias", ()))
    known["stop"] = tuple(known.get("stop", ()))
    known["already"] = tuple(map(tuple, known.get("already", ())))
    if known.get("guidance") is not None:
        known["guidance"] = tuple(known["guidance"])
    return Wish(**known)


def _cache_tokens(model: OwnModel) -> int:
    """Return for how many tokens there is memory: at least one text of the whole context."""
    context, size = model.decoder.context_length, token_bytes(model.decoder)
    most = _MOST_CONTEXTS * context
    there = int(_SHARE * psutil.virtual_memory().available / size) if size else _PLAIN_TOKENS
    return max(min(context, _PLAIN_TOKENS), min(most, there))
