"""Text to tokens and back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vermilion.errors import OptionError
from vermilion.genai.generator import Tensor
from vermilion.genai.model import Model, own_model
from vermilion.llm.tokenizer import TextStream


class Tokenizer:
    """The tokenizer of a model's folder."""

    def __init__(self, model: Model) -> None:
        own = own_model(model)
        # Options are set on a tokenizer, not on the model that others use too.
        self._own = own.tokenizer.another()
        self._model, self._ends = own.config.model, own.ends

    @property
    def bos_token_id(self) -> int:
        """The token that begins a text."""
        found = self._model.get("bos_token_id")
        if not isinstance(found, int):
            raise OptionError("the configuration has no `bos_token_id`")
        return found

    @property
    def eos_token_ids(self) -> NDArray[np.int32]:
        """The tokens that end a text."""
        return np.array(self._ends.ends, np.int32)

    @property
    def pad_token_id(self) -> int:
        """The token that fills the shorter prompts of a batch."""
        return self._ends.pad

    def to_token_id(self, token: str) -> int:
        """Return the number of a token."""
        return self._own.token_id(token)

    def update_options(self, **options: object) -> None:
        """Set `add_special_tokens`, `skip_special_tokens`: true or false, or these words."""
        self._own.options = self._own.options.with_changes(options)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a text."""
        return np.array(self._own.encode(text), np.int32)

    def decode(self, tokens: ArrayLike) -> str:
        """Return the text of tokens, or of one."""
        return self._own.decode(np.asarray(tokens).reshape(-1))

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """Return the tokens of several texts, padded on the right: (texts, longest)."""
        if not texts:
            raise OptionError("there are no texts")
        rows = [self._own.encode(text) for text in texts]
        longest = max(map(len, rows))
        padded = [row + [self._ends.pad] * (longest - len(row)) for row in rows]
        return Tensor(np.array(padded, np.int32))

    def decode_batch(self, tokens: Tensor | NDArray[np.int32]) -> list[str]:
        """Return the text of each row."""
        return [self._own.decode(row) for row in np.asarray(tokens)]

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Write a conversation, given as JSON, as the model was trained to read it.

        Raises: OptionError for what is no JSON, or without a template.
        """
        return self._own.apply_chat_template(
            _rows("messages", messages),
            template=template_str or "",
            tools=_rows("tools", tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
        )

    def create_stream(self) -> TokenizerStream:
        """Return a reader of tokens that come one at a time."""
        return TokenizerStream(self._own.create_stream())


class TokenizerStream:
    """Text of tokens as they come; `Tokenizer.create_stream` makes one."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def decode(self, token: int) -> str:
        """Return the text that this token completes, which may be none."""
        return self._stream.decode(token)


def _rows(name: str, text: str) -> list[dict[str, object]]:
    if not isinstance(text, str):
        raise OptionError(
            f"the {name} are JSON, as a string, not {type(text).__name__}",
            hint=f"`json.dumps({name})`",
        )
    try:
        given = json.loads(text)
    except ValueError as error:
        raise OptionError(f"the {name} are no JSON: {error}") from error
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise OptionError(f"the {name} are no list of objects")
    return given
