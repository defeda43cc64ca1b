"""The loop: tokens go in, the next one comes out."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vermilion.genai.model import Model, own_model
from vermilion.genai.params import GeneratorParams, chosen
from vermilion.genai.tensor import Tensor


class Generator:
    """A batch of sequences that grow together, with a cache of their own."""

    def __init__(self, model: Model, params: GeneratorParams) -> None:
        options, guidance = chosen(params)
        self._loop = own_model(model).generator(dataclasses.asdict(options), guidance)

    def append_tokens(self, tokens: ArrayLike | Tensor) -> None:
        """Append a prompt, or more of the text; a batch is padded on the right."""
        self._loop.append_tokens(tokens.as_numpy() if isinstance(tokens, Tensor) else tokens)

    def generate_next_token(self) -> None:
        """Choose the next token of every sequence."""
        self._loop.generate_next_token()

    def is_done(self) -> bool:
        """Say whether every sequence has ended, or has its greatest length."""
        return self._loop.is_done()

    def get_next_tokens(self) -> NDArray[np.int32]:
        """Return the tokens chosen last."""
        return self._loop.get_next_tokens()

    def get_sequence(self, index: int) -> NDArray[np.int32]:
        """Return a whole sequence, its prompt included."""
        return self._loop.get_sequence(index)

    def get_logits(self) -> NDArray[np.float32]:
        """Return the logits that the next token is chosen from."""
        return self._loop.get_logits()

    def set_logits(self, new_logits: ArrayLike) -> None:
        """Choose the next token from these logits instead."""
        self._loop.set_logits(new_logits)

    def rewind_to(self, new_length: int) -> None:
        """Forget the tokens after the first `new_length`."""
        self._loop.rewind_to(new_length)

    def token_count(self) -> int:
        """Return the length of the sequences."""
        return self._loop.token_count()
