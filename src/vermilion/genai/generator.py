"""The loop: tokens go in, the next one comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vermilion.errors import OptionError, UnsupportedError
from vermilion.genai.model import Model, own_model
from vermilion.llm.guidance import Guidance
from vermilion.llm.open_model import search_of
from vermilion.llm.search import SearchOptions, TokenChance


class Tensor:
    """An array. `numpy.asarray` takes it, too."""

    def __init__(self, values: ArrayLike) -> None:
        self._values = np.array(values)

    def as_numpy(self) -> NDArray[Any]:
        """Return the numbers."""
        return self._values

    def shape(self) -> list[int]:
        """Return the sizes."""
        return list(self._values.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._values, dtype=dtype, copy=bool(copy) or dtype is not None)


class GeneratorParams:
    """The search options of a model's configuration, and the changes to them."""

    def __init__(self, model: Model) -> None:
        own = own_model(model)
        found = search_of(own.config)
        longest = found.max_length or own.decoder.context_length
        self._options = dataclasses.replace(found, max_length=longest)
        self._guidance: Guidance | None = None

    def set_search_options(self, **options: float) -> None:
        """Set options by their names in `genai_config.json`.

        Raises: OptionError for a name or a type that there is not.
        """
        self._options = self._options.with_changes(options)

    def get_search_options(self) -> dict[str, float | bool]:
        """Return all options; every number is a float, as onnxruntime-genai gives it."""
        given = dataclasses.asdict(self._options)
        return {name: v if isinstance(v, bool) else float(v) for name, v in given.items()}

    def set_guidance(self, type: str, data: str, enable_ff_tokens: bool = False) -> None:
        """Make the text have a form: `json_schema`, `regex` or `lark_grammar`.

        `enable_ff_tokens` is taken and not used: a token that must come is chosen like any other.
        """
        self._guidance = Guidance(type, data)


def chosen(params: GeneratorParams) -> tuple[SearchOptions, Guidance | None]:
    """Return what was set.

    Raises: OptionError for anything else.
    """
    if not isinstance(params, GeneratorParams):
        raise OptionError(
            f"search options are wanted, not {type(params).__name__}",
            hint="`GeneratorParams(model)` gives them",
        )
    return params._options, params._guidance


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

    def set_logit_bias(self, biases: Mapping[int, float]) -> None:
        """Add numbers, -100 to 100, to the logits of tokens before each choice. This is ours."""
        self._loop.set_logit_bias(biases)

    def keep_chances(self, count: int) -> None:
        """Keep what the model expects at each choice, with the `count` likeliest. This is ours."""
        self._loop.keep_chances(count)

    def get_chances(self) -> list[TokenChance]:
        """Return what the model expected of the tokens chosen last, for each row."""
        return self._loop.get_chances()

    def set_active_adapter(self, adapters: object, name: str) -> NoReturn:
        """Raise UnsupportedError: adapters are not applied."""
        raise UnsupportedError(
            f"the adapter `{name}` is not applied", hint="merge it into the weights"
        )

    def rewind_to(self, new_length: int) -> None:
        """Forget the tokens after the first `new_length`."""
        self._loop.rewind_to(new_length)

    def token_count(self) -> int:
        """Return the length of the sequences."""
        return self._loop.token_count()
