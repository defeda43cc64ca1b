"""A model in memory, and its folder's configuration, which a program may change before."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.decoder import EngineName, EngineOptions, Prefill
from vermilion.llm.genai_config import GenaiConfig, session_options
from vermilion.llm.open_model import OwnModel, open_own_model, read_model_config
from vermilion.store.cache_dir import default_root


class Config:
    """What `genai_config.json` says, and the changes to it. The file stays as it is."""

    def __init__(self, config_path: str | os.PathLike[str]) -> None:
        read = read_model_config(Path(config_path), default_root())
        self._folder, self._source = read.folder, read.source
        self._data: dict[str, Any] = copy.deepcopy(dict(read.data))
        _ = read.decoder  # one clear error now for what is no decoder's

    def append_provider(self, name: str) -> None:
        """Add a provider after those that are there; one that is there stays where it is."""
        if self._entry(name) is None:
            self._entries().append({name: {}})

    def clear_providers(self) -> None:
        """Leave only the CPU, in every stage of a pipeline."""
        self._entries().clear()
        for _, options in session_options(self._as_read()):
            cast("dict[str, Any]", options)["provider_options"] = []

    def set_provider_option(self, name: str, key: str, value: str) -> None:
        """Set one option of a provider, which is added where it is not there."""
        self.append_provider(name)
        entry = self._entry(name)
        assert entry is not None, "it was appended"
        entry[key] = value

    def overlay(self, text: str) -> None:
        """Lay an object of JSON over the configuration: what it names is replaced, key by key.

        Raises: OptionError for what is no object.
        """
        try:
            given = json.loads(text)
        except ValueError as error:
            raise OptionError(f"the overlay is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise OptionError("the overlay is no JSON object", hint='`{"search": {…}}`')
        _lay_over(self._data, given)

    def _as_read(self) -> GenaiConfig:
        return GenaiConfig(self._folder, self._data, self._source)

    def _entries(self) -> list[Any]:
        decoder = cast("dict[str, Any]", self._as_read().decoder)
        options = decoder.setdefault("session_options", {})
        entries = options.setdefault("provider_options", []) if isinstance(options, dict) else None
        if not isinstance(entries, list):
            raise ModelError(
                "the session options are no object with a list of providers",
                where=self._as_read().where,
                hint="`vermilion llm config DIR` says what is wrong",
            )
        return entries

    def _entry(self, name: str) -> dict[str, Any] | None:
        for entry in self._entries():
            if isinstance(entry, dict) and name in entry:
                found: dict[str, Any] = entry[name]
                return found
        return None


def as_read(config: Config) -> GenaiConfig:
    """Return the configuration as our engines take it."""
    return config._as_read()


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = value


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

    def create_multimodal_processor(self) -> NoReturn:
        """Raise UnsupportedError: only the text of a model is computed."""
        raise UnsupportedError(
            "images and sound are not read: only the text of a model is computed",
            hint="`onnxruntime_genai` reads them",
        )

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
