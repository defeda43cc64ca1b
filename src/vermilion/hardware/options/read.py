"""Finding provider options in files that somebody wrote: JSON, Python, C++; none is run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hardware.options.cpp import read_cpp
from vermilion.hardware.options.lint import full_name, is_amd
from vermilion.hardware.options.option import OptionSet, Setting
from vermilion.hardware.options.python_sessions import Unread, read_python
from vermilion.hardware.options.vitisai import PROVIDER
from vermilion.hardware.options.vitisai_build import is_vaiml_config

MAX_BYTES = 4 << 20
"""A file of options is small; a larger one is another kind of file."""

_HINT = (
    'write them as JSON (`{"provider": "VitisAIExecutionProvider", "options": {…}}`), or give'
    " the Python or C++ file that makes the session"
)


@dataclass(frozen=True)
class Reading:
    """What a file says: option sets, the setting they are for, and what only a run would tell."""

    option_sets: tuple[OptionSet, ...]
    setting: Setting
    unread: tuple[Unread, ...] = ()


def read_options(path: Path) -> Reading:
    """Return what a file says about the options of AMD's providers.

    Raises: OptionError where the file holds none, or cannot be read as what it is.
    """
    if path.stat().st_size > MAX_BYTES:
        raise OptionError("the file is too large for options", where=str(path), hint=_HINT)
    try:
        found, setting, unread = _found(path)
    except RecursionError as error:
        raise OptionError(
            "the file is nested too deeply, or a name in it stands for itself", where=str(path)
        ) from error
    mine = tuple(
        _with_config(options, path.parent) for options in found if is_amd(options.provider)
    )
    if not mine and not unread:
        raise OptionError(
            "no options for one of AMD's providers were found", where=str(path), hint=_HINT
        )
    return Reading(mine, setting, tuple(unread))


def _found(path: Path) -> tuple[list[OptionSet], Setting, list[Unread]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    suffix = path.suffix.lower()
    if suffix in (".json", ".jsonc"):
        data = _parse(text, path)
        found = list(_from_json(data, str(path)))
        if not found and isinstance(data, dict) and _is_flat(data):
            found = [_option_set(PROVIDER, data, str(path))]
        return found, _setting(data), []
    if suffix in (".cc", ".cpp", ".cxx", ".h", ".hpp"):
        read, open_calls = read_cpp(text, str(path))
        return read, Setting(), open_calls
    sessions = read_python(text, str(path), path.parent)
    return sessions.found, Setting(), sessions.unread


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
    object from provider to options, also inside `provider_options` of a genai_config.json; lists
    of names as in a configuration of Olive's; the provider's own configuration file.
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
    for value in data.values():
        if isinstance(value, dict | list):
            yield from _from_json(value, where)


def _is_flat(data: Mapping[str, object]) -> bool:
    """Say whether an object is nothing but options: then they are taken as VitisAI's."""
    return bool(data) and not any(isinstance(value, dict | list) for value in data.values())


def _from_list(items: list[object], where: str) -> Iterator[OptionSet]:
    for item in items:
        if isinstance(item, dict):
            name, options = item.get("name"), item.get("options")
            if isinstance(name, str) and isinstance(options, dict):
                yield _option_set(name, options, where)
            else:
                yield from _from_json(item, where)
        elif isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
            yield _option_set(item[0], item[1] if isinstance(item[1], dict) else {}, where)
        elif isinstance(item, str):
            yield OptionSet(full_name(item), {}, where)


def _option_set(provider: str, options: Mapping[str, object], where: str) -> OptionSet:
    kinds = {k: type(v).__name__ for k, v in options.items() if not isinstance(v, str)}
    return OptionSet(full_name(provider), {k: str(v) for k, v in options.items()}, where, kinds)


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
