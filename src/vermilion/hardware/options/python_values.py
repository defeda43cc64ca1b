"""What an expression of Python can stand for, without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from vermilion.hardware.options.option import unknown


@dataclass(frozen=True)
class Text:
    """A constant as text, and the name of its type."""

    text: str
    kind: str = "str"


@dataclass(frozen=True)
class Open:
    """A value that only running the program would tell: its expression."""

    expression: str

    @property
    def text(self) -> str:
        """Return the expression, marked as one."""
        return unknown(self.expression)


@dataclass
class Items:
    """A list or a tuple. Not whole where something unknown was added."""

    items: list[Value] = field(default_factory=list)
    is_whole: bool = True


@dataclass
class Table:
    """A dictionary with keys of text. Not whole where something unknown was added."""

    entries: dict[str, Value] = field(default_factory=dict)
    is_whole: bool = True


@dataclass(frozen=True)
class Function:
    """A function or a lambda of the file."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    owner: str = ""  # the class that it is a method of


@dataclass(frozen=True)
class Bound:
    """A function of another package, by the last part of its name; with arguments given ahead."""

    name: str
    keywords: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class OneOf:
    """Several values, of which a run has one."""

    values: tuple[Value, ...]


Value = Text | Open | Items | Table | Function | Bound | OneOf

MOST_VALUES = 12
"""A name that can have more values than this is open."""


def one_of(values: list[Value]) -> Value:
    """Return several values as one, each once."""
    found: list[Value] = []
    for value in values:
        for single in each(value):
            if single not in found:
                found.append(single)
    if len(found) == 1:
        return found[0]
    return OneOf(tuple(found[:MOST_VALUES]))


def copied(names: dict[str, Value]) -> dict[str, Value]:
    """Return names with lists and dictionaries of their own; what was one object stays one."""
    made: dict[int, Value] = {}

    def copy(value: Value) -> Value:
        if id(value) in made:
            return made[id(value)]
        match value:
            case Items(items=items, is_whole=whole):
                new_items = Items([], whole)
                made[id(value)] = new_items
                new_items.items += [copy(item) for item in items]
                return new_items
            case Table(entries=entries, is_whole=whole):
                table = Table({}, whole)
                made[id(value)] = table
                table.entries.update({key: copy(one) for key, one in entries.items()})
                return table
            case OneOf(values=values):
                made[id(value)] = result = OneOf(tuple(copy(one) for one in values))
                return result
        return value

    return {name: copy(value) for name, value in names.items()}


def each(value: Value) -> tuple[Value, ...]:
    """Return the values that a value can be."""
    return value.values if isinstance(value, OneOf) else (value,)


def merged(first: Value, second: Value) -> Value:
    """Return `first | second` of two dictionaries, or `first + second` of two lists."""
    results: list[Value] = []
    for one in each(first):
        for two in each(second):
            if isinstance(one, Table):
                whole = one.is_whole and isinstance(two, Table) and two.is_whole
                entries = two.entries if isinstance(two, Table) else {}
                results.append(Table(one.entries | entries, whole))
            elif isinstance(two, Table):
                results.append(Table(dict(two.entries), is_whole=False))
            elif isinstance(one, Items):
                whole = one.is_whole and isinstance(two, Items) and two.is_whole
                items = two.items if isinstance(two, Items) else []
                results.append(Items([*one.items, *items], whole))
            else:
                results.append(Open("..."))
    return one_of(results)


def from_data(data: object) -> Value:
    """Return what a JSON file holds."""
    if isinstance(data, dict):
        return Table({str(key): from_data(value) for key, value in data.items()})
    if isinstance(data, list):
        return Items([from_data(value) for value in data])
    return Text(str(data), type(data).__name__)


def text_of(value: Value) -> Text:
    """Return a value as an option's text."""
    if isinstance(value, Text):
        return value
    if isinstance(value, Open):
        return Text(value.text)
    return Text(unknown("…"))
