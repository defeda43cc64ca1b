"""Finding provider options in files that somebody wrote: JSON, Python, C++."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hardware.options.lint import full_name, is_amd
from vermilion.hardware.options.option import OptionSet, Setting
from vermilion.hardware.options.read_python import read_python
from vermilion.hardware.options.vaiml import is_vaiml_config
from vermilion.hardware.options.vitisai import PROVIDER

MAX_BYTES = 4 << 20
"""A file of options is small; a larger one is another kind of file."""

_HINT = (
    'write them as JSON (`{"provider": "VitisAIExecutionProvider", "options": {…}}`), or give'
    " the Python or C++ file that makes the session"
)


def read_options(path: Path) -> tuple[tuple[OptionSet, ...], Setting]:
    """Return the option sets for AMD's providers in a file, and the setting that it states.

    Raises: OptionError where the file holds none, or cannot be read as what it is.
    """
    if path.stat().st_size > MAX_BYTES:
        raise OptionError("the file is too large for options", where=str(path), hint=_HINT)
    try:
        found, setting = _found(path)
    except RecursionError as error:
        raise OptionError(
            "the file is nested too deeply, or a name in it stands for itself", where=str(path)
        ) from error
    mine = tuple(
        _with_config(options, path.parent) for options in found if is_amd(options.provider)
    )
    if not mine:
        raise OptionError(
            "no options for one of AMD's providers were found", where=str(path), hint=_HINT
        )
    return mine, setting


def _found(path: Path) -> tuple[list[OptionSet], Setting]:
    text = path.read_text(encoding="utf-8", errors="replace")
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonc"):
        data = _parse(text, path)
        return list(_from_json(data, str(path))), _setting(data)
    if suffix in (".cc", ".cpp", ".cxx", ".h", ".hpp"):
        return list(_from_cpp(text, str(path))), Setting()
    return list(read_python(text, str(path))), Setting()


def _parse(text: str, path: Path) -> object:
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"this is no JSON: {error}", where=str(path), hint="fix the file first"
        ) from error
    return parsed


def _setting(data: object) -> Setting:
    if not isinstance(data, dict):
        return Setting()
    keys = ("release", "build")
    build = next((str(data[key]) for key in keys if isinstance(data.get(key), str)), "")
    words = {
        key: str(data[key])
        for key in ("device", "precision", "system")
        if isinstance(data.get(key), str)
    }
    return Setting(build=build, **words)


def _from_json(data: object, where: str) -> Iterator[OptionSet]:
    """Yield option sets from every form that JSON is found in.

    One object with `provider` and `options`; a list of those or of [name, options] pairs; an
    object from provider to options, also inside `provider_options` of a genai_config.json; the
    provider's own configuration file; a bare object of options, taken as VitisAI's.
    """
    if isinstance(data, list):
        yield from _from_list(data, where)
        return
    if not isinstance(data, dict):
        return
    if is_vaiml_config(data):
        config = {str(key): value for key, value in data.items()}
        yield OptionSet(PROVIDER, {"config_file": Path(where).name}, where, config=config)
        return
    if isinstance(data.get("provider"), str):
        options = data.get("options", data.get("provider_options", {}))
        if isinstance(options, dict):
            content = data.get("config")
            found = _option_set(data["provider"], options, where)
            yield replace(found, config=content) if isinstance(content, dict) else found
        return
    named = [(name, value) for name, value in data.items() if isinstance(value, dict)]
    providers = [(name, value) for name, value in named if is_amd(str(name))]
    if providers:
        for name, options in providers:
            yield _option_set(str(name), options, where)
        return
    nested = [v for v in data.values() if isinstance(v, dict | list)]
    if nested:
        for value in nested:
            yield from _from_json(value, where)
    elif data:
        yield _option_set(PROVIDER, data, where)


def _from_list(items: list[object], where: str) -> Iterator[OptionSet]:
    for item in items:
        if isinstance(item, dict):
            name, options = item.get("name"), item.get("options")
            if isinstance(name, str) and isinstance(options, dict):
                yield _option_set(name, options, where)
            elif any(isinstance(value, dict) for value in item.values()) or "provider" in item:
                yield from _from_json(item, where)
        elif isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
            yield _option_set(item[0], item[1] if isinstance(item[1], dict) else {}, where)
        elif isinstance(item, str):
            yield OptionSet(full_name(item), {}, where)


def _option_set(provider: str, options: Mapping[str, object], where: str) -> OptionSet:
    kinds = {k: type(v).__name__ for k, v in options.items() if not isinstance(v, str)}
    return OptionSet(full_name(provider), {k: str(v) for k, v in options.items()}, where, kinds)


# `options["key"] = "value";`, `{"key", "value"}`, `.emplace("key", "value")`, and the call that
# names the provider. Only text literals are read.
_CPP_PAIR = re.compile(
    r'(?:\[\s*"([^"\n]{1,80})"\s*\]\s*=\s*|'
    r'(?:\{|emplace\(|insert\(\s*\{)\s*"([^"\n]{1,80})"\s*,\s*)"([^"\n]{0,500})"'
)
_CPP_PROVIDER = re.compile(
    r'AppendExecutionProvider(?:_V2)?\s*\(\s*"([A-Za-z]{1,60})"|'
    r"AppendExecutionProvider_(VitisAI|MIGraphX|ROCM)\b|OrtApi.{0,60}_(MIGraphX|ROCM|VitisAI)\b"
)


def _from_cpp(text: str, where: str) -> Iterator[OptionSet]:
    """Yield one option set for each provider that is appended: the pairs written before it."""
    pairs = [(m.start(), m[1] or m[2], m[3]) for m in _CPP_PAIR.finditer(text)]
    begin = 0
    for call in _CPP_PROVIDER.finditer(text):
        options = {k: _unescape(v) for at, k, v in pairs if begin <= at < call.end()}
        line = text.count("\n", 0, call.start()) + 1
        name = call[1] or call[2] or call[3]
        yield OptionSet(full_name(name), options, f"{where}:{line}")
        begin = call.end()


def _unescape(text: str) -> str:
    return text.replace("\\\\", "\\")


def _with_config(options: OptionSet, folder: Path) -> OptionSet:
    """Read the file that `config_file` names, where there is one beside the options."""
    written = options.options.get("config_file", "")
    if options.config is not None or not written:
        return options
    path = folder / written
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return options
    try:
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return options
    return replace(options, config=data) if isinstance(data, dict) else options
