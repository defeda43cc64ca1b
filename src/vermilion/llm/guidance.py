"""Text of a given form: JSON of a schema, a regular expression, a grammar. llguidance does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError, UnsupportedError

# The names of onnxruntime-genai's `set_guidance`, and llguidance's functions for them.
_KINDS: Mapping[str, str] = {
    "json_schema": "grammar_from_json_schema",
    "regex": "grammar_from_regex",
    "lark_grammar": "grammar_from_lark",
}


@dataclass(frozen=True)
class Guidance:
    """What form a text is to have."""

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise OptionError(
                f"`{self.kind}` is no kind of guidance", hint=f"there are {', '.join(_KINDS)}"
            )
        if not isinstance(self.text, str):
            raise OptionError(
                f"`{self.kind}` is a string, not {type(self.text).__name__}",
                hint="`json.dumps` writes a schema",
            )
        if not self.text:
            raise OptionError(f"`{self.kind}` is empty")


class Guide:
    """Follows one sequence, and says which tokens may come next."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        from llguidance import numpy as masks

        self._matcher, self._masks = matcher, masks
        self._bits: NDArray[np.int32] = masks.allocate_token_bitmask(1, vocabulary)

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Take from the logits, in place, what must not come next."""
        self._masks.fill_next_token_bitmask(self._matcher, self._bits, 0)
        self._masks.apply_token_bitmask_inplace(logits[None, :], self._bits)

    def take(self, token: int) -> None:
        """Go on by a token."""
        self._matcher.consume_token(token)

    def reset(self) -> None:
        """Begin again."""
        self._matcher.reset()


def start_guides(
    guidance: Guidance, tokenizer_file: str, *, vocabulary: int, end: int, count: int
) -> tuple[Guide, ...]:
    """Return a guide for each of `count` sequences of a model, by its `tokenizer.json`.

    Raises: UnsupportedError without llguidance; OptionError for a form that it cannot read.
    """
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise UnsupportedError(
            "text of a given form needs llguidance", hint="pip install llguidance"
        ) from error
    grammar = _grammar(guidance, LLMatcher)
    tokenizer = _tokenizer(tokenizer_file, vocabulary, end)
    guides = []
    for _ in range(count):
        matcher = LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            raise OptionError(
                f"the {guidance.kind} cannot be followed: {matcher.get_error()}",
                hint="simplify it",
            )
        guides.append(Guide(matcher, vocabulary))
    return tuple(guides)


# Of a large vocabulary it takes seconds, and a server asks for each text.
@lru_cache(maxsize=2)
def _tokenizer(file: str, vocabulary: int, end: int) -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer(file, n_vocab=vocabulary, eos_token=end)


def _grammar(guidance: Guidance, matcher: Any) -> str:
    text: object = guidance.text
    if guidance.kind == "json_schema":
        try:
            text = json.loads(guidance.text)
        except ValueError as error:
            raise OptionError(
                f"the schema is no JSON: {error}", hint='`{"type": "object"}`, say'
            ) from error
    try:
        found: str = getattr(matcher, _KINDS[guidance.kind])(text)
    except ValueError as error:
        raise OptionError(f"the {guidance.kind} cannot be read: {error}") from error
    return found
