"""Provider options in Python source, found without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vermilion.errors import OptionError
from vermilion.hardware.options.option import OptionSet, unknown

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
        yield _option_set(call.args[0], options, (), names, where)


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
        yield _option_set(name, mine, every, names, where, owner)


def _option_set(
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
