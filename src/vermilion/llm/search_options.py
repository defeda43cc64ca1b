"""How the next token is chosen: the names, defaults and limits of onnxruntime-genai 0.18.

Source: microsoft/onnxruntime-genai, `struct Search` in `src/config.h` and the constructor of
`Generator` in `src/generators.cpp`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.errors import OptionError

_MOST_ROWS = 32  # of a batch, and of beams: onnxruntime-genai's own limits


@dataclass(frozen=True)
class SearchOptions:
    """Lengths count the prompt. `top_k` 1 or `temperature` 0 choose the likeliest token."""

    batch_size: int = 1
    chunk_size: int = 0  # taken and not used: the engine cuts prompts itself
    diversity_penalty: float = 0.0  # taken and not used, as there
    do_sample: bool = False
    early_stopping: bool = True
    length_penalty: float = 1.0
    max_length: int = 0  # 0: the model's context
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    past_present_share_buffer: bool = True  # the cache is never copied, whatever this says
    random_seed: int = -1  # -1: another text each time
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.0

    @property
    def rows(self) -> int:
        """Sequences that advance together."""
        return self.batch_size * self.num_beams

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return not self.do_sample or self.top_k == 1 or self.temperature == 0

    def with_changes(self, changes: Mapping[str, object]) -> SearchOptions:
        """Return the options with some changed.

        Raises: OptionError for a name or a type that there is not.
        """
        types = {field.name: field.type for field in dataclasses.fields(self)}
        checked = {name: _as_type(name, value, types) for name, value in changes.items()}
        return dataclasses.replace(self, **checked)  # type: ignore[arg-type]

    def checked(self, vocabulary: int, context: int) -> SearchOptions:
        """Return the options with `max_length` set, once they fit the model and each other.

        Raises: OptionError.
        """
        longest = self.max_length or context
        if longest > context:
            raise OptionError(
                f"`max_length` is {longest:,}, and the model's context {context:,}",
                hint=f"ask for {context} or less",
            )
        _check_rows(self)
        if not self.is_greedy:
            _check_sampling(self, vocabulary)
        if self.repetition_penalty <= 0:
            raise OptionError("`repetition_penalty` is over 0", hint="1 leaves the text as it is")
        return dataclasses.replace(self, max_length=longest)


def _as_type(name: str, value: object, types: Mapping[str, object]) -> object:
    if name not in types:
        import difflib  # for the mistake alone

        near = difflib.get_close_matches(name, types, n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(types)}"
        raise OptionError(f"`{name}` is no search option", hint=hint)
    if types[name] == "bool":
        if isinstance(value, bool):
            return value
        raise OptionError(f"`{name}` is true or false, not {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"`{name}` is a number, not {value!r}")
    if value != value or abs(value) >= 1 << 31:
        raise OptionError(f"`{name}` is {value!r}")
    if types[name] == "float":
        return float(value)
    if value != int(value):
        raise OptionError(f"`{name}` is a whole number, not {value!r}")
    return int(value)


def _check_rows(options: SearchOptions) -> None:
    limits = {
        "batch_size": (options.batch_size, _MOST_ROWS),
        "num_beams": (options.num_beams, _MOST_ROWS),
        "num_return_sequences": (options.num_return_sequences, options.num_beams),
    }
    for name, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise OptionError(f"`{name}` is {value}, not from 1 to {most}")
    if options.num_beams > 1 and not options.is_greedy:
        raise OptionError(
            "beams and sampling exclude each other", hint="`num_beams` 1, or `do_sample` false"
        )


def _check_sampling(options: SearchOptions, vocabulary: int) -> None:
    if not 0 <= options.top_p <= 1:
        raise OptionError(f"`top_p` is {options.top_p}, not from 0 to 1")
    if not 0 <= options.top_k <= vocabulary:
        raise OptionError(
            f"`top_k` is {options.top_k}, not from 0 to the {vocabulary:,} tokens that there are"
        )
    if options.temperature < 0:
        raise OptionError("`temperature` is 0 or more")
