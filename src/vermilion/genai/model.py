"""A model in memory."""

from __future__ import annotations

import os
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.genai.config import Config, as_read
from vermilion.llm.open_decoder import EngineName, EngineOptions, Prefill
from vermilion.llm.own_model import OwnModel, open_own_model


class Model:
    """A folder that is open. Generators and tokenizers of one model may run in several threads.

    `engine` and `prefill` are ours; onnxruntime-genai has no such choice.
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        *,
        engine: EngineName = "auto",
        prefill: Prefill = "auto",
        cache: Path | None = None,
    ) -> None:
        given = config if isinstance(config, Config) else Config(config)
        options = EngineOptions(engine=engine, prefill=prefill, cache=cache)
        self._own = open_own_model(as_read(given), options)

    @property
    def type(self) -> str:
        """The kind of model: `llama`, `phi3` …."""
        return self._own.config.type

    @property
    def device_type(self) -> str:
        """Where it runs, which is always the CPU."""
        return "CPU"

    @property
    def engine(self) -> str:
        """What runs it, with its version."""
        return self._own.engine

    @property
    def engine_reason(self) -> str:
        """Why that is not our generated code; empty if it is."""
        return self._own.reason


def own_model(model: Model) -> OwnModel:
    """Return what is behind a model.

    Raises: OptionError for anything else, as a path would be.
    """
    if not isinstance(model, Model):
        raise OptionError(
            f"a model is wanted, not {type(model).__name__}", hint="`Model(folder)` opens one"
        )
    return model._own
