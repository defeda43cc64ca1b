"""Follows a Python file statement by statement, without running it.

Both sides of an `if`, each `case` and each round of a loop are followed; a name then has every
value that one of them gave it. Functions of the file are followed where they are called.
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hardware.options.python_expressions import Call, Names, evaluate
from vermilion.hardware.options.python_values import (
    Bound,
    Function,
    Items,
    Open,
    Table,
    Text,
    Value,
    copied,
    each,
    from_data,
    merged,
    one_of,
    text_of,
)

_MOST_STEPS = 200_000
_MOST_DEPTH = 12


@dataclass
class Run:
    """One file being followed; `seen` gets each call of a function that the file does not have."""

    folder: Path
    seen: Callable[[Call, Run], None]
    names: Names = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    tests: list[ast.expr] = field(default_factory=list)
    _called: set[int] = field(default_factory=set)
    _active: list[int] = field(default_factory=list)
    _steps: int = 0
    _returns: list[list[Value]] = field(default_factory=list)

    def follow(self, tree: ast.Module) -> None:
        """Follow a file, then the functions of it that it never calls itself."""
        self.block(tree.body)
        waiting = [value for value in self.names.values() if isinstance(value, Function)]
        waiting.sort(
            key=lambda one: isinstance(one.node, ast.Lambda) or one.node.name != "__init__"
        )
        for function in waiting:
            if id(function.node) not in self._called:
                self.call(function, [], {})

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Follow statements in their order."""
        for statement in body:
            self._step()
            self._statement(statement)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise OptionError("the file is too long to follow", hint="give the options as JSON")

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                result = self.value(value)
                for target in targets:
                    self._assign(target, result)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value))
            case ast.AugAssign(target=target, op=ast.BitOr() | ast.Add(), value=value):
                self._assign(target, merged(self.value(_as_load(target)), self.value(value)))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=value):
                result = self.value(value) if value is not None else Text("None", "NoneType")
                if self._returns:
                    self._returns[-1].append(result)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.names[node.name] = Function(node)
            case ast.ClassDef():
                self._class(node)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    if alias.asname:
                        self.names[alias.asname] = Bound(alias.name.rpartition(".")[2])
            case _:
                self._compound(node)

    def _compound(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self.value(test)
                self._branches([body, orelse], [test, test])
            case ast.Match(subject=subject, cases=cases):
                self.value(subject)
                sure = any(
                    isinstance(c.pattern, ast.MatchAs) and not c.pattern.pattern for c in cases
                )
                bodies = [case.body for case in cases] + ([] if sure else [[]])
                self._branches(bodies, [subject] * len(bodies))
            case (
                ast.For(target=target, iter=source, body=body)
                | ast.AsyncFor(target=target, iter=source, body=body)
            ):
                self._loop(target, self.value(source), body)
                self.block(node.orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self.value(test)
                self._branches([body, []], [test, test])
                self.block(orelse)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    result = self.value(item.context_expr)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, result)
                self.block(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._branches([[*body, *orelse], *([*h.body] for h in handlers)], [])
                self.block(final)

    def _branches(self, bodies: list[list[ast.stmt]], tests: list[ast.expr]) -> None:
        """Follow each body from here, and let names have what any of them gave."""
        before, results = self.names, []
        for number, body in enumerate(bodies):
            self.names = copied(before)
            if number < len(tests):
                self.tests.append(tests[number])
            self.block(body)
            if number < len(tests):
                self.tests.pop()
            if not _leaves(body):
                results.append(self.names)
        self.names = before if not results else _joined(results)

    def _loop(self, target: ast.expr, source: Value, body: list[ast.stmt]) -> None:
        rounds = [item for one in each(source) for item in _elements(one)]
        for item in rounds[:32] or [Open(ast.unparse(target))]:
            self._assign(target, item)
            self.block(body)

    def _class(self, node: ast.ClassDef) -> None:
        outer = self.names
        self.names = dict(outer)
        self.block([one for one in node.body if not isinstance(one, ast.FunctionDef)])
        inner = {name: value for name, value in self.names.items() if outer.get(name) is not value}
        self.names = outer
        for name, value in inner.items():
            self.names[f"{node.name}.{name}"] = value
            self.names[f"self.{name}"] = value
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        methods.sort(key=lambda one: one.name != "__init__")
        for method in methods:
            self.names[f"self.{method.name}"] = Function(method, node.name)

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute():
                self.names[ast.unparse(target)] = value
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                single = value if isinstance(value, Items) else None
                for number, element in enumerate(elements):
                    known = single is not None and number < len(single.items)
                    part = single.items[number] if single is not None and known else None
                    self._assign(element, part if part is not None else Open(ast.unparse(element)))
            case ast.Subscript(value=owner, slice=key):
                self._put(owner, key, value)

    def _put(self, owner: ast.expr, key: ast.expr, value: Value) -> None:
        if isinstance(owner, ast.Attribute) and owner.attr == "environ":
            self.environment[text_of(self.value(key)).text] = text_of(value).text
            return
        place = self.value(key)
        for one in each(self.value(owner)):
            if isinstance(one, Table):
                one.entries[text_of(place).text] = value
            elif (
                isinstance(one, Items)
                and isinstance(place, Text)
                and place.text.isdigit()
                and int(place.text) < len(one.items)
            ):
                one.items[int(place.text)] = value

    def call(self, function: Function, given: list[Value], keywords: dict[str, Value]) -> Value:
        """Follow a function of the file, and return what it returns."""
        self._called.add(id(function.node))
        if id(function.node) in self._active or len(self._active) >= _MOST_DEPTH:
            return Open(f"{getattr(function.node, 'name', 'lambda')}()")
        parameters = function.node.args
        every = [*parameters.posonlyargs, *parameters.args]
        defaults = [None] * (len(every) - len(parameters.defaults)) + list(parameters.defaults)
        inner = dict(self.names)
        arguments = [Open("self"), *given] if function.owner else given
        for number, parameter in enumerate(every):
            default = defaults[number]
            inner[parameter.arg] = (
                arguments[number] if number < len(arguments)
                else keywords.get(parameter.arg)
                or (self.value(default) if default is not None else Open(parameter.arg))
            )  # fmt: skip
        for parameter, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            inner[parameter.arg] = keywords.get(parameter.arg) or (
                self.value(default) if default is not None else Open(parameter.arg)
            )
        if parameters.kwarg is not None:
            known = {one.arg for one in [*every, *parameters.kwonlyargs]}
            rest = {name: value for name, value in keywords.items() if name not in known}
            inner[parameters.kwarg.arg] = Table(rest)
        return self._inside(function, inner)

    def _inside(self, function: Function, inner: Names) -> Value:
        outer, self.names = self.names, inner
        self._active.append(id(function.node))
        self._returns.append([])
        if isinstance(function.node, ast.Lambda):
            result = self.value(function.node.body)
        else:
            self.block(function.node.body)
            returned = self._returns[-1]
            result = one_of(returned) if returned else Text("None", "NoneType")
        self._returns.pop()
        self._active.pop()
        # What a method puts into `self` stays.
        outer.update({name: one for name, one in self.names.items() if name.startswith("self.")})
        self.names = outer
        return result

    def tell(self, call: Call) -> None:
        """Hand on a call of a function that the file does not have."""
        self.seen(call, self)

    def value(self, node: ast.expr) -> Value:
        """Return what an expression stands for."""
        self._step()
        return evaluate(self, node)

    def read_json(self, name: str) -> Value:
        """Return what a file beside the program holds."""
        path = self.folder / name
        try:
            return from_data(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError):
            return Open(f"json.load({name!r})")


def _as_load(target: ast.expr) -> ast.expr:
    loaded = copy.deepcopy(target)
    loaded.ctx = ast.Load()  # type: ignore[attr-defined]
    return loaded


def _elements(value: Value) -> list[Value]:
    match value:
        case Items(items=items):
            return items
        case Table(entries=entries):
            return [Text(key) for key in entries]
    return []


def _leaves(body: list[ast.stmt]) -> bool:
    """Say whether what follows a body is never reached from it."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _joined(results: list[Names]) -> Names:
    joined: Names = {}
    for name in {name for names in results for name in names}:
        values = [names[name] for names in results if name in names]
        joined[name] = one_of(values) if any(v != values[0] for v in values[1:]) else values[0]
    return joined
