"""A folder opened with its tokenizer: on the engine asked for, or the first that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.decoder import Decoder, EngineOptions, open_decoder, open_known
from vermilion.llm.genai_config import NAME, GenaiConfig, read_genai_config, session_options
from vermilion.llm.generation import Ends, Generation
from vermilion.llm.guidance import Guidance, Guide, start_guides
from vermilion.llm.search import SearchOptions
from vermilion.llm.tokenizer import FolderTokenizer, open_tokenizer
from vermilion.store.cache_dir import default_root

# Findings on providers and their options, which our engines do not read.
_OTHERS = ("genai.provider", "genai.cpu-options", "genai.entry", "genai.packed", "genai.library")


@dataclass(frozen=True)
class OwnModel:
    """A model in memory. Each generation has a cache of its own, so threads may share it."""

    config: GenaiConfig
    decoder: Decoder = field(repr=False)
    engine: str
    reason: str
    cache: Path | None = None  # the user's own

    @cached_property
    def tokenizer(self) -> FolderTokenizer:
        """The folder's tokenizer, loaded when text is first read or written."""
        if self.config.source is not None:
            return self.config.source.tokenizer(self.cache or default_root())
        return open_tokenizer(self.config.folder, self.cache or default_root())

    @property
    def ends(self) -> Ends:
        """The tokens that end a text."""
        return ends_of(self.config)

    def encode(self, text: str, *, as_chat: bool) -> list[int]:
        """Return the tokens of a prompt, inside the model's chat template where it has one."""
        if as_chat and self.tokenizer.has_template:
            text = self.tokenizer.apply_chat_template([{"role": "user", "content": text}])
        tokens = self.tokenizer.encode(text)
        begin = self.config.source.begin() if self.config.source is not None else ()
        return tokens if tokens[:1] == [*begin[:1]] else [*begin, *tokens]

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a conversation, up to where the model answers."""
        return self.tokenizer.apply_chat_template(messages)

    def _tokenizer_file(self) -> str:
        source = self.config.source
        if source is not None:
            return source.tokenizer_file()
        return (self.config.folder / "tokenizer.json").read_text(encoding="utf-8")

    def generator(
        self, search: Mapping[str, object], guidance: Guidance | None = None
    ) -> Generation:
        """Return a generator; what `search` does not say is as the folder's configuration says."""
        options = search_of(self.config).with_changes(search)
        guides = () if guidance is None else self.guides(guidance, options.batch_size)
        return Generation(self.decoder, options, self.ends, guides)

    def guides(self, guidance: Guidance, count: int) -> tuple[Guide, ...]:
        """Return what keeps so many texts to a form."""
        return start_guides(
            guidance,
            self._tokenizer_file(),
            vocabulary=self.decoder.vocabulary_size,
            end=self.ends.ends[0],
            count=count,
        )


def open_own_model(config: GenaiConfig, options: EngineOptions) -> OwnModel:
    """Open a folder on one of our engines.

    Raises: ModelError for a damaged folder; UnsupportedError where no engine of ours runs it.
    """
    known = open_known(config, options)
    if known is None and config.source is None:
        check_folder(config)
    providers = providers_of(config)
    if providers and not options.on_cpu:
        raise UnsupportedError(
            f"the folder names the provider {providers[0]}, and our engines run on the CPU",
            where=config.where,
            hint="`--cpu`, or `clear_providers()`, runs it on the CPU; onnxruntime-genai runs it"
            " on the device",
        )
    opened = known or open_decoder(config, options)
    model = OwnModel(config, opened.decoder, opened.engine, opened.reason, options.cache)
    if known is None:
        model.tokenizer.encode("")  # a damaged one is found when the folder is first opened
    return model


def read_model_config(path: Path, cache: Path | None = None) -> GenaiConfig:
    """Return the configuration of a folder of onnxruntime-genai, or of a published model.

    `cache` keeps what takes long to read of one.

    Raises: OptionError for what is neither; ModelError, UnsupportedError for what cannot be read.
    """
    if (path / NAME).is_file() or not (path.is_file() or (path / "config.json").is_file()):
        return read_genai_config(path)
    from vermilion.llm.source.open_source import find_source

    source = find_source(path, cache)
    if source is None:
        return read_genai_config(path)
    return GenaiConfig(path, source.config(), source)


def check_folder(config: GenaiConfig) -> None:
    """Raise ModelError for the first thing that keeps a folder from loading at all."""
    from vermilion.llm.genai_check import check_genai_config

    for found in check_genai_config(config):
        if found.level == "error" and found.id.startswith("genai.") and found.id not in _OTHERS:
            raise ModelError(found.what, where=config.where, hint=found.fix)


def providers_of(config: GenaiConfig) -> tuple[str, ...]:
    """Return the providers that a folder names, the CPU's apart."""
    found: list[str] = []
    for _, options in session_options(config):
        entries = options.get("provider_options")
        for entry in entries if isinstance(entries, list) else []:
            found += [str(name) for name in entry] if isinstance(entry, dict) else []
    return tuple(name for name in dict.fromkeys(found) if name.lower() != "cpu")


def search_of(config: GenaiConfig) -> SearchOptions:
    """Return the search options that a folder's configuration holds."""
    known = SearchOptions()
    given = config.data.get("search")
    rows = given.items() if isinstance(given, dict) else ()
    own = {name: value for name, value in rows if hasattr(known, name) and value is not None}
    if own.get("max_length") == 0:  # onnxruntime-genai's word for the context
        del own["max_length"]
    try:
        return known.with_changes(own)
    except OptionError as error:
        raise ModelError(error.message, where=config.where, hint=error.hint) from error


def ends_of(config: GenaiConfig) -> Ends:
    """Return the tokens that end a text, and the one for padding.

    Raises: ModelError where the configuration has none.
    """
    given: Any = config.model.get("eos_token_id")
    ends = given if isinstance(given, list) else [given]
    if not ends or not all(isinstance(one, int) and not isinstance(one, bool) for one in ends):
        raise ModelError(
            f"`model.eos_token_id` is {given!r}, no token or list of tokens",
            where=config.where,
            hint="copy it from the model's `generation_config.json`",
        )
    pad = config.model.get("pad_token_id")
    return Ends(tuple(ends), pad if isinstance(pad, int) and pad >= 0 else ends[0])


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
    config = read_model_config(folder, options.cache or default_root())
    if options.engine == "onnxruntime-genai" and config.source is None:
        return _stock(folder, options, "asked for")
    providers = providers_of(config)
    if options.engine == "auto" and providers and not options.on_cpu:
        return _stock(folder, options, f"the folder names the provider {providers[0]}")
    try:
        return open_own_model(config, options)
    except UnsupportedError as error:
        is_auto = options.engine == "auto" and config.source is None
        if not is_auto or find_spec("onnxruntime_genai") is None:
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
