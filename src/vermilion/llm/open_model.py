"""A folder on the engine asked for, or on the first that takes it, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vermilion.errors import OptionError, UnsupportedError
from vermilion.llm.genai_config import GenaiConfig, read_genai_config
from vermilion.llm.guidance import Guidance
from vermilion.llm.open_decoder import EngineOptions
from vermilion.llm.own_model import open_own_model, providers_of


class AnyModel(Protocol):
    """What generation needs of a model; a generator has onnxruntime-genai's methods."""

    @property
    def config(self) -> GenaiConfig:
        """What the folder says."""
        ...

    @property
    def engine(self) -> str:
        """What runs it, with its version."""
        ...

    @property
    def reason(self) -> str:
        """Why that is not our generated code; empty if it is."""
        ...

    @property
    def tokenizer(self) -> Any:
        """With `encode`, `decode` and `create_stream`."""
        ...

    def encode(self, text: str, *, as_chat: bool) -> list[int]:
        """Return the tokens of a prompt."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a conversation."""
        ...

    def generator(self, search: Mapping[str, object], guidance: Guidance | None = None) -> Any:
        """Return a generator."""
        ...


def open_model(folder: Path, options: EngineOptions) -> AnyModel:
    """Open a folder.

    Raises: OptionError, ModelError for a folder that is none or damaged; UnsupportedError where no
    engine runs it; DeviceError where a provider is not there.
    """
    config = read_genai_config(folder)
    if options.engine == "onnxruntime-genai":
        return _stock(folder, options, "asked for")
    providers = providers_of(config)
    if options.engine == "auto" and providers and not options.on_cpu:
        return _stock(folder, options, f"the folder names the provider {providers[0]}")
    try:
        return open_own_model(config, options)
    except UnsupportedError as error:
        if options.engine != "auto" or find_spec("onnxruntime_genai") is None:
            raise
        return _stock(folder, options, error.message)


def _stock(folder: Path, options: EngineOptions, reason: str) -> AnyModel:
    # With all that checks a configuration: nothing that a folder known to our engine needs.
    from vermilion.llm.stock_engine import open_folder

    return open_folder(folder, options, reason)


def check_room(config: GenaiConfig, prompt: int, new: int) -> None:
    """Raise OptionError where a prompt and what is to follow exceed the context."""
    context = config.context_length()
    if prompt + new > context:
        raise OptionError(
            f"the prompt has {prompt:,} tokens and {new:,} are to follow; the model's context"
            f" is {context:,}",
            where=str(config.folder),
            hint="shorten the prompt, or ask for fewer tokens",
        )
