"""What expressions stand for: constants, lists, dictionaries, calls of functions of the file."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Protocol

from vermilion.hardware.options.python_values import (
    Bound,
    Function,
    Items,
    Open,
    Table,
    Text,
    Value,
    each,
    from_data,
    merged,
    one_of,
    text_of,
)

Names = dict[str, Value]
# The first argument as it is: copies, casts between kinds of lists, and what only wraps.
_SAME = frozenset({"list", "tuple", "sorted", "reversed", "deepcopy", "set", "MappingProxyType"})


@dataclass
class Call:
    """A call as it is made: what is called, with which arguments, within which tests."""

    node: ast.Call
    name: str
    arguments: list[Value]
    keywords: dict[str, Value]
    is_whole: bool = True


class Follower(Protocol):
    """What follows a file: it knows the names, and is told of calls."""

    names: Names
    environment: dict[str, str]

    def value(self, node: ast.expr) -> Value:
        """Return what an expression stands for."""

    def call(self, function: Function, given: list[Value], keywords: Names) -> Value:
        """Follow a function of the file."""

    def tell(self, call: Call) -> None:
        """Take note of a call of a function that the file does not have."""

    def read_json(self, name: str) -> Value:
        """Return what a file beside the program holds."""


def evaluate(run: Follower, node: ast.expr) -> Value:
    """Return what an expression stands for."""
    match node:
        case ast.Constant(value=value):
            return Text(str(value), type(value).__name__)
        case ast.Name(id=name):
            return run.names.get(name, Open(name))
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return _list(run, elements)
        case ast.Dict():
            return _dictionary(run, node)
        case ast.Call():
            return _call(run, node)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            run.value(test)
            return one_of([run.value(body), run.value(orelse)])
        case ast.BoolOp(values=values):
            return one_of([run.value(value) for value in values])
        case ast.BinOp(left=left, op=ast.BitOr() | ast.Add(), right=right):
            return _sum(run, node, left, right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(run, node, left, right)
        case ast.JoinedStr(values=values):
            return _joined_text(run, node, values)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            run.names[name] = result = run.value(value)
            return result
        case ast.Lambda():
            return Function(node)
        case ast.Await(value=value) | ast.Starred(value=value):
            return run.value(value)
    return _reached(run, node)


def _reached(run: Follower, node: ast.expr) -> Value:
    """Return what a part of another value is, or what a comprehension makes."""
    match node:
        case ast.Attribute(attr=name):
            known = run.names.get(ast.unparse(node))
            return known if known is not None else Bound(name) if _is_call(name) else _open(node)
        case ast.Subscript(value=owner, slice=key):
            return _item(run, node, run.value(owner), run.value(key))
        case (
            ast.ListComp(elt=element, generators=[loop])
            | ast.GeneratorExp(elt=element, generators=[loop])
        ):
            # Over what only a run would tell, the expression itself says the most.
            made = _rounds(run, loop, [element])
            return Items(made) if made else _open(node)
        case ast.DictComp(key=key, value=value, generators=[loop]):
            found = list(_rounds(run, loop, [key, value]))
            keys, values = found[::2], found[1::2]
            are_known = all(isinstance(one, Text) for one in keys)
            entries = {text_of(k).text: v for k, v in zip(keys, values, strict=True)}
            return Table(entries if are_known else {}, are_known and bool(found))
    return _open(node)


def _open(node: ast.expr) -> Open:
    return Open(ast.unparse(node))


def _is_call(name: str) -> bool:
    return name in {"InferenceSession", "dict", "list", "tuple"} or name.startswith("ORTModel")


def _list(run: Follower, elements: list[ast.expr]) -> Items:
    found = Items()
    for element in elements:
        value = run.value(element)
        if isinstance(element, ast.Starred):
            parts = [one for one in each(value) if isinstance(one, Items)]
            found.items += [item for one in parts for item in one.items]
            found.is_whole &= len(parts) == len(each(value))
        else:
            found.items.append(value)
    return found


def _dictionary(run: Follower, node: ast.Dict) -> Value:
    found: Value = Table()
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:  # **other
            found = merged(found, run.value(value))
            continue
        name, held = run.value(key), run.value(value)
        for one in each(found):
            if not isinstance(one, Table):
                continue
            for spelled in each(name):
                one.entries[text_of(spelled).text] = held
    return found


def _sum(run: Follower, node: ast.expr, left: ast.expr, right: ast.expr) -> Value:
    one, two = run.value(left), run.value(right)
    if isinstance(one, Text) and isinstance(two, Text) and one.kind == two.kind == "str":
        return Text(one.text + two.text)
    if any(isinstance(value, Items | Table) for value in (*each(one), *each(two))):
        return merged(one, two)
    return _open(node)


def _product(run: Follower, node: ast.expr, left: ast.expr, right: ast.expr) -> Value:
    one, two = run.value(left), run.value(right)
    if isinstance(one, Items) and isinstance(two, Text) and two.text.isdigit():
        return Items(one.items * min(int(two.text), 64), one.is_whole)
    return _open(node)


def _joined_text(run: Follower, node: ast.expr, values: list[ast.expr]) -> Value:
    parts = []
    for value in values:
        inner = value.value if isinstance(value, ast.FormattedValue) else value
        known = run.value(inner)
        if not isinstance(known, Text):
            return _open(node)
        parts.append(known.text)
    return Text("".join(parts))


def _item(run: Follower, node: ast.expr, owner: Value, key: Value) -> Value:
    found: list[Value] = []
    for one in each(owner):
        if isinstance(one, Table) and isinstance(key, Text) and key.text in one.entries:
            found.append(one.entries[key.text])
        elif isinstance(one, Items) and isinstance(key, Text) and key.text.lstrip("-").isdigit():
            at = int(key.text)
            if -len(one.items) <= at < len(one.items):
                found.append(one.items[at])
        elif isinstance(one, Table) and one.entries and not isinstance(key, Text):
            found += one.entries.values()  # one of them: which, only a run tells
    return one_of(found) if found else _open(node)


def _rounds(run: Follower, loop: ast.comprehension, results: list[ast.expr]) -> list[Value]:
    """Return what each round of a comprehension makes."""
    found: list[Value] = []
    outer = dict(run.names)
    sources = each(run.value(loop.iter))
    items = [item for one in sources for item in (_elements(one))]
    for item in items[:64]:
        names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        parts = item.items if isinstance(item, Items) and len(names) > 1 else [item]
        for target, part in zip(names, parts, strict=False):
            if isinstance(target, ast.Name):
                run.names[target.id] = part
        found += [run.value(result) for result in results]
    run.names.clear()
    run.names.update(outer)
    return found


def _elements(value: Value) -> list[Value]:
    if isinstance(value, Items):
        return value.items
    return [Text(key) for key in value.entries] if isinstance(value, Table) else []


def _call(run: Follower, node: ast.Call) -> Value:
    called = run.value(node.func) if isinstance(node.func, ast.Name) else None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if isinstance(node.func, ast.Attribute):
        called = run.names.get(ast.unparse(node.func))
    arguments, keywords, whole = _arguments(run, node)
    for one in each(called) if called is not None else ():
        if isinstance(one, Function):
            return run.call(one, arguments, keywords)
        if isinstance(one, Bound):
            name = one.name
            keywords = dict(one.keywords) | keywords
    if isinstance(node.func, ast.Attribute):
        known = _method(run, node.func, arguments, keywords)
        if known is not None:
            return known
    known = _builtin(run, name, arguments, keywords)
    if known is not None:
        return known
    run.tell(Call(node, name, arguments, keywords, whole))
    return _open(node)


def _arguments(run: Follower, node: ast.Call) -> tuple[list[Value], Names, bool]:
    """Return a call's arguments, its keywords, and whether these are all."""
    listed = _list(run, node.args)
    keywords: Names = {}
    whole = listed.is_whole
    for keyword in node.keywords:
        value = run.value(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
            continue
        tables = [one for one in each(value) if isinstance(one, Table)]
        for key in {key for one in tables for key in one.entries}:
            keywords[key] = one_of([one.entries[key] for one in tables if key in one.entries])
        whole &= len(tables) == len(each(value)) and all(one.is_whole for one in tables)
    return listed.items, keywords, whole


def _method(
    run: Follower, function: ast.Attribute, arguments: list[Value], keywords: Names
) -> Value | None:
    """Return what a method of a list or dictionary gives, None if it is none of theirs."""
    if isinstance(function.value, ast.Attribute) and function.value.attr == "environ":
        if function.attr == "setdefault" and len(arguments) == 2:
            run.environment[text_of(arguments[0]).text] = text_of(arguments[1]).text
        return Open(f"os.environ.{function.attr}(...)")
    owner = run.value(function.value)
    if function.attr == "read_text" and isinstance(owner, Text):
        return Text(owner.text, "file")
    results = [_on(one, function.attr, arguments, keywords) for one in each(owner)]
    known = [one for one in results if one is not None]
    return one_of(known) if known else None


def _on(owner: Value, name: str, arguments: list[Value], keywords: Names) -> Value | None:
    if isinstance(owner, Items):
        return _on_list(owner, name, arguments)
    if isinstance(owner, Table):
        return _on_table(owner, name, arguments, keywords)
    return None


def _on_list(owner: Items, name: str, arguments: list[Value]) -> Value | None:
    match name, arguments:
        case "append", [value]:
            owner.items.append(value)
        case "insert", [_, value]:
            owner.items.insert(0, value)
        case "extend", [value]:
            more = merged(Items(), value)
            owner.items += more.items if isinstance(more, Items) else []
            owner.is_whole &= isinstance(more, Items) and more.is_whole
        case "copy", []:
            return Items(list(owner.items), owner.is_whole)
        case _:
            return None
    return Text("None", "NoneType")


def _on_table(owner: Table, name: str, arguments: list[Value], keywords: Names) -> Value | None:
    match name, arguments:
        case "update", _:
            for value in [*arguments, Table(keywords)]:
                pairs = as_table(value)
                owner.entries.update(pairs.entries)
                owner.is_whole &= pairs.is_whole
        case "setdefault", [key, value]:
            owner.entries.setdefault(text_of(key).text, value)
            return owner.entries[text_of(key).text]
        case "copy", []:
            return Table(dict(owner.entries), owner.is_whole)
        case (("get" | "pop"), [key, *default]):
            held = owner.entries.get(text_of(key).text)
            return held if held is not None else default[0] if default else Text("None", "NoneType")
        case "items", []:
            pairs_: list[Value] = [
                Items([Text(key), value]) for key, value in owner.entries.items()
            ]
            return Items(pairs_, owner.is_whole)
        case "values", []:
            return Items(list(owner.entries.values()), owner.is_whole)
        case "keys", []:
            return Items([Text(key) for key in owner.entries], owner.is_whole)
        case _:
            return None
    return Text("None", "NoneType")


def as_table(value: Value) -> Table:
    """Return a dictionary, or pairs, as a dictionary."""
    if isinstance(value, Table):
        return value
    if isinstance(value, Items):
        pairs = [one for one in value.items if isinstance(one, Items) and len(one.items) == 2]
        entries = {text_of(pair.items[0]).text: pair.items[1] for pair in pairs}
        return Table(entries, value.is_whole and len(pairs) == len(value.items))
    return Table({}, is_whole=False)


def _builtin(run: Follower, name: str, arguments: list[Value], keywords: Names) -> Value | None:
    first = arguments[0] if arguments else None
    if name in {"dict", "OrderedDict"}:
        table = as_table(first) if first is not None else Table()
        return Table(table.entries | keywords, table.is_whole)
    if first is None:
        return Items() if name in {"list", "tuple"} else None
    if name == "zip" and len(arguments) == 2:
        one, two = arguments
        if isinstance(one, Items) and isinstance(two, Items):
            return Items([Items([a, b]) for a, b in zip(one.items, two.items, strict=False)])
    if name in _SAME:
        return Items(list(first.items), first.is_whole) if isinstance(first, Items) else first
    if name in {"str", "Path"} and len(arguments) == 1:
        return Text(text_of(first).text)
    if name == "enumerate" and isinstance(first, Items):
        return Items([Items([Text(str(i), "int"), one]) for i, one in enumerate(first.items)])
    if name == "partial" and isinstance(first, Bound | Open):
        called = first.name if isinstance(first, Bound) else first.expression.rpartition(".")[2]
        return Bound(called, tuple(keywords.items()))
    if name == "loads" and isinstance(first, Text) and first.kind == "file":
        return run.read_json(first.text)
    if name == "loads" and isinstance(first, Text):
        import json

        try:
            return from_data(json.loads(first.text))
        except (ValueError, RecursionError):
            return None
    if name in {"open", "read_text"} and isinstance(first, Text):
        return Text(first.text, "file")
    if name in {"load", "safe_load"} and isinstance(first, Text) and first.kind == "file":
        return run.read_json(first.text)
    return None
