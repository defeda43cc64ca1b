"""Running an OGA folder with onnxruntime-genai itself.

`python -m vermilion.llm.stock_engine FOLDER` opens one on the CPU, in a process of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vermilion.clib.library import PROVIDER, plugin_library
from vermilion.errors import DeviceError, ModelError, OptionError, UnsupportedError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.genai_check import check_genai_config
from vermilion.llm.genai_config import GenaiConfig, read_genai_config
from vermilion.llm.guidance import Guidance

# What memory for keys and values our plugin wants: a block of them.
LEAST_LENGTH = 64
_FIRST_LINE = re.compile(r"[^\n]{1,300}")


@dataclass(frozen=True)
class OpenModel:
    """A model in memory, with its tokenizer."""

    config: GenaiConfig
    genai: Any = field(repr=False)  # the module, which the folder's objects belong to
    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    reason: str = "asked for"  # why this engine runs, which every result says

    @property
    def engine(self) -> str:
        """What runs it, with its version."""
        return f"onnxruntime-genai {version('onnxruntime-genai')}"

    def encode(self, text: str, *, as_chat: bool) -> list[int]:
        """Return the tokens of a prompt, inside the model's chat template where it has one."""
        written = self._templated(text) if as_chat else text
        return [int(token) for token in self.tokenizer.encode(written)]

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the text of a conversation, up to where the model answers."""
        text = json.dumps(list(messages))
        with_prompt: str = self.tokenizer.apply_chat_template(text, add_generation_prompt=True)
        return with_prompt

    def _templated(self, text: str) -> str:
        if not _has_template(self.config.folder):
            return text
        return self.apply_chat_template([{"role": "user", "content": text}])

    def generator(self, search: Mapping[str, object], guidance: Guidance | None = None) -> Any:
        """Return a generator for one sequence; `search` holds onnxruntime-genai's own options.

        Raises: OptionError for a length that our plugin has no room for.
        """
        length = search.get("max_length")
        if _is_ours(self.config) and isinstance(length, int) and length < LEAST_LENGTH:
            raise OptionError(
                f"a sequence of {length} tokens in all: our plugin keeps blocks of {LEAST_LENGTH}",
                where=self.config.where,
                hint="ask for more new tokens (`-g 64`); the text may end before",
            )
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(**search)
        if guidance is not None:
            params.set_guidance(guidance.kind, guidance.text)
        return self.genai.Generator(self.model, params)


def open_folder(folder: Path, options: EngineOptions, reason: str = "asked for") -> OpenModel:
    """Open an OGA folder; `reason` is why it is not one of our own engines that does.

    Raises: OptionError, ModelError for a folder that is none or damaged; UnsupportedError without
    onnxruntime-genai; DeviceError where a provider is not there.
    """
    config = read_genai_config(folder)
    for found in check_genai_config(config):
        if found.level == "error" and not (options.on_cpu and _is_about_provider(found.id)):
            raise ModelError(found.what, where=config.where, hint=found.fix)
    genai = _genai()
    try:
        if _is_ours(config):
            _register_plugin()
        opened = genai.Config(str(config.folder))
        if options.on_cpu:
            opened.clear_providers()
        if options.threads:
            sessions = {"intra_op_num_threads": options.threads}
            opened.overlay(json.dumps({"model": {"decoder": {"session_options": sessions}}}))
        model = genai.Model(opened)
        return OpenModel(config, genai, model, genai.Tokenizer(model), reason)
    except RuntimeError as error:
        raise _opening_failed(config, error) from error


def _genai() -> Any:
    try:
        import onnxruntime_genai
    except ImportError as error:
        raise UnsupportedError(
            "running language models needs onnxruntime-genai",
            hint="pip install 'vermilion[llm]'",
        ) from error
    onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai


def _is_ours(config: GenaiConfig) -> bool:
    """Say whether a folder's decoder runs in our plugin."""
    return f'"{PROVIDER}"' in json.dumps(config.data)


@cache
def _register_plugin() -> None:
    """Let onnxruntime-genai find our provider.

    Raises: DeviceError where the plugin cannot be built.
    """
    _genai().register_execution_provider_library("vermilion", str(plugin_library()))


def _is_about_provider(id: str) -> bool:
    return not id.startswith("genai.") or id in ("genai.provider", "genai.cpu-options")


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    file = folder / "tokenizer_config.json"
    return file.is_file() and '"chat_template"' in file.read_text("utf-8", errors="replace")


def _opening_failed(config: GenaiConfig, error: RuntimeError) -> Exception:
    found = _FIRST_LINE.search(str(error))
    words = found[0] if found else "no reason was given"
    about_provider = re.search(
        r"provider|not (been )?(supported|built)|\.so\b|\.dll\b", words, re.I
    )
    if about_provider:
        return DeviceError(
            f"onnxruntime-genai cannot open it: {words}",
            where=config.where,
            hint="this folder is machine code, for our provider alone"
            if _is_ours(config)
            else "`--cpu` runs it on the CPU; `vermilion llm config DIR` looks at its providers",
        )
    return ModelError(
        f"onnxruntime-genai cannot open it: {words}",
        where=config.where,
        hint="build the folder again with `vermilion llm build`",
    )


if __name__ == "__main__":  # to find a folder that will not load
    open_folder(Path(sys.argv[1]), EngineOptions(threads=1, on_cpu=True))
