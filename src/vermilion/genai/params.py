"""How a generator is to choose tokens."""

from __future__ import annotations

import dataclasses

from vermilion.errors import OptionError
from vermilion.genai.model import Model, own_model
from vermilion.llm.guidance import Guidance
from vermilion.llm.own_model import search_of
from vermilion.llm.search_options import SearchOptions


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
