"""Finding provider options in files that somebody wrote: JSON, Python, C++; none is run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hardware.options.lint import full_name, is_amd
from vermilion.hardware.options.option import OptionSet, Setting, unknown
from vermilion.hardware.options.vitisai import PROVIDER
from vermilion.hardware.options.vitisai_build import is_vaiml_config

_SESSION_CALLS = ("InferenceSession", "set_providers")
_MAX_DEPTH = 12


@dataclass
class _Names:
    """What simple assignments in the file gave to names; the last one counts."""

    values: dict[str, ast.expr] = field(default_factory=dict)
    items: dict[str, list[tuple[ast.expr, ast.expr]]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Literal:
    """A value as text, and the name of its type."""

    text: str
    kind: str = "str"


def read_python(text: str, where: str) -> Iterator[OptionSet]:
    """Yield an option set for each provider that a session in this source is given.

    Names are followed to their assignment. What only running it would tell is marked unknown.

    Raises: OptionError where the source is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise OptionError(
            f"this is no Python: {error}", where=where, hint="fix the file first"
        ) from error
    names = _collect(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _from_call(node, names, f"{where}:{node.lineno}")


def _collect(tree: ast.AST) -> _Names:
    names = _Names()
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        for target in targets:
            if isinstance(target, ast.Name):
                names.values[target.id] = value
            elif isinstance(target, ast.Subscript):
                _collect_item(target, value, names)
    return names


def _collect_item(target: ast.Subscript, value: ast.expr, names: _Names) -> None:
    owner = target.value
    if isinstance(owner, ast.Attribute) and owner.attr == "environ":
        key, text = _literal(target.slice, names), _literal(value, names)
        names.environment[key.text] = text.text
    while isinstance(owner, ast.Subscript):  # provider_options[0]["key"]
        owner = owner.value
    if isinstance(owner, ast.Name):
        names.items.setdefault(owner.id, []).append((target.slice, value))


def _from_call(call: ast.Call, names: _Names, where: str) -> Iterator[OptionSet]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    called = call.func.id if isinstance(call.func, ast.Name) else called
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if called in _SESSION_CALLS:
        given = keywords.get("providers")
        if given is None and called == "set_providers" and call.args:
            given = call.args[0]
        if given is not None:
            yield from _from_session(given, keywords.get("provider_options"), names, where)
    elif called in ("add_provider", "append_execution_provider") and call.args:
        options = call.args[1] if len(call.args) > 1 else keywords.get("options")
        yield _python_option_set(call.args[0], options, (), names, where)


def _from_session(
    providers: ast.expr, options: ast.expr | None, names: _Names, where: str
) -> Iterator[OptionSet]:
    listed = _elements(providers, names)
    given = _elements(options, names) if options is not None else []
    pairs: list[tuple[ast.expr, ast.expr | None]] = []
    for position, entry in enumerate(listed):
        entry = _followed(entry, names)
        if isinstance(entry, ast.Tuple | ast.List) and entry.elts:
            pairs.append((entry.elts[0], entry.elts[1] if len(entry.elts) > 1 else None))
        else:
            pairs.append((entry, given[position] if position < len(given) else None))
    every = tuple(_literal(name, names).text for name, _ in pairs)
    owner = options.id if isinstance(options, ast.Name) else ""
    for name, mine in pairs:
        yield _python_option_set(name, mine, every, names, where, owner)


def _python_option_set(
    name: ast.expr,
    options: ast.expr | None,
    every: tuple[str, ...],
    names: _Names,
    where: str,
    list_name: str = "",
) -> OptionSet:
    found: dict[str, _Literal] = {}
    owners = [list_name]
    if isinstance(options, ast.Name):
        owners.append(options.id)
    followed = _followed(options, names) if options is not None else None
    if isinstance(followed, ast.Dict):
        found |= _entries(followed, names)
    for owner in owners:
        for key, value in names.items.get(owner, []):
            if not isinstance(_followed(value, names), ast.Dict):
                found[_literal(key, names).text] = _literal(value, names)
    return OptionSet(
        provider=_literal(name, names).text,
        options={key: value.text for key, value in found.items()},
        where=where,
        not_text={k: v.kind for k, v in found.items() if v.kind != "str"},
        providers=every,
        environment=dict(names.environment),
    )


def _entries(node: ast.Dict, names: _Names) -> Mapping[str, _Literal]:
    found: dict[str, _Literal] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:  # **other
            other = _followed(value, names)
            if isinstance(other, ast.Dict):
                found |= _entries(other, names)
            continue
        found[_literal(key, names).text] = _literal(value, names)
    return found


def _elements(node: ast.expr, names: _Names) -> list[ast.expr]:
    followed = _followed(node, names)
    return followed.elts if isinstance(followed, ast.List | ast.Tuple) else [node]


def _followed(node: ast.expr, names: _Names) -> ast.expr:
    """Return what a name was assigned, as far as names lead."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(node, ast.Name) or node.id not in names.values:
            break
        node = names.values[node.id]
    return node


def _literal(node: ast.expr, names: _Names) -> _Literal:
    node = _followed(node, names)
    if isinstance(node, ast.Constant):
        return _Literal(str(node.value), type(node.value).__name__)
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        called = node.func
        if isinstance(called, ast.Name) and called.id in ("str", "Path"):
            return _Literal(_literal(node.args[0], names).text)
    return _Literal(unknown(ast.unparse(node)))


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
