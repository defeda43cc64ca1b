"""Provider options in a Python file: what each session of it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hardware.options.lint import full_name, is_amd
from vermilion.hardware.options.option import OptionSet
from vermilion.hardware.options.python_expressions import Call
from vermilion.hardware.options.python_run import Run
from vermilion.hardware.options.python_values import (
    Items,
    Open,
    Table,
    Text,
    Value,
    each,
    text_of,
)

# Where a call has its providers and their options, by position: `InferenceSession(path, options,
# providers, provider_options)`.
_SESSIONS = {"InferenceSession": 2, "set_providers": 0}
_BY_NAME = frozenset({"add_provider", "append_execution_provider", "append_provider"})
_OPTIMUM = ("ORTModel", "ORTStableDiffusion", "ORTDiffusion", "ORTPipeline")
# Asking a build what it has gives no provider any options.
_HARMLESS = ("get_available_providers", "get_all_providers", "get_providers")


@dataclass(frozen=True)
class Unread:
    """A session whose providers or options only a run would tell."""

    where: str
    what: str


@dataclass
class Sessions:
    """What a file gives its sessions, and what could not be read."""

    where: str
    found: list[OptionSet] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    def take(self, call: Call, run: Run) -> None:
        """Take note of a call, if it makes a session or gives one providers."""
        place = f"{self.where}:{call.node.lineno}"
        if call.name in _SESSIONS:
            first = _SESSIONS[call.name]
            providers = _argument(call, "providers", first)
            if providers is not None:
                options = _argument(call, "provider_options", first + 1)
                self._session(providers, options, run, place)
            elif not call.is_whole:
                self._unread(place, f"the arguments of `{call.name}`")
        elif call.name == "add_provider_for_devices":
            self._for_devices(call, run, place)
        elif call.name in _BY_NAME and call.arguments:
            options = call.arguments[1] if len(call.arguments) > 1 else call.keywords.get("options")
            self._option_sets(call.arguments[0], options, (), run, place)
        elif call.name == "set_provider_option" and len(call.arguments) == 3:
            name, key, value = call.arguments
            self._option_sets(name, Table({text_of(key).text: value}), (), run, place)
        elif "provider" in call.keywords and _is_optimum(call):
            options = call.keywords.get("provider_options")
            self._option_sets(call.keywords["provider"], options, (), run, place)

    def _unread(self, place: str, what: str) -> None:
        one = Unread(place, what)
        if one not in self.unread:
            self.unread.append(one)

    def _session(self, providers: Value, options: Value | None, run: Run, place: str) -> None:
        for listed in each(providers):
            if isinstance(listed, Open):
                if not any(word in listed.expression for word in _HARMLESS):
                    self._unread(place, f"`providers`, which is `{listed.expression}`")
                continue
            entries = listed.items if isinstance(listed, Items) else [listed]
            if isinstance(listed, Items) and not listed.is_whole:
                self._unread(place, "a part of `providers`")
            for given in each(options) if options is not None else (Items(),):
                own = given.items if isinstance(given, Items) else []
                self._pairs(entries, own, isinstance(given, Open), run, place)

    def _pairs(
        self, entries: Sequence[Value], options: Sequence[Value], is_open: bool, run: Run,
        place: str,
    ) -> None:  # fmt: skip
        pairs: list[tuple[Value, Value | None]] = []
        for position, entry in enumerate(entries):
            for one in each(entry):
                if isinstance(one, Items) and one.items:
                    pairs.append((one.items[0], one.items[1] if len(one.items) > 1 else None))
                else:
                    pairs.append((one, options[position] if position < len(options) else None))
        every = tuple(text_of(name).text for name, _ in pairs)
        for name, mine in pairs:
            self._option_sets(name, mine, every, run, place)
            if is_open and any(_is_amd(one) for one in each(name)):
                self._unread(place, f"the options of {text_of(name).text}")

    def _for_devices(self, call: Call, run: Run, place: str) -> None:
        """Take a provider by the devices that it is chosen from: their `ep_name` is compared."""
        options = (
            call.arguments[1] if len(call.arguments) > 1 else call.keywords.get("provider_options")
        )
        devices = call.node.args[0] if call.node.args else call.node
        places = [devices, *run.tests]
        names = [name for node in places for name in _names_in(node, run)]
        chosen = [name for name in dict.fromkeys(names) if is_amd(name)]
        for name in chosen:
            self._option_sets(Text(name), options, (), run, place)
        if not names:
            self._unread(place, "which provider `add_provider_for_devices` adds")

    def _option_sets(
        self, name: Value, options: Value | None, every: tuple[str, ...], run: Run, place: str
    ) -> None:
        for one in each(name):
            if isinstance(one, Open):
                self._unread(place, f"the provider `{one.expression}`")
                continue
            provider = text_of(one).text
            for given in each(options) if options is not None else (Table(),):
                table = given if isinstance(given, Table) else Table()
                is_none = isinstance(given, Text) and given.kind == "NoneType"
                if _is_amd(one) and not (isinstance(given, Table) or is_none):
                    self._unread(place, f"the options of {provider}")
                if _is_amd(one) and not table.is_whole:
                    self._unread(place, f"a part of the options of {provider}")
                self._add(provider, table, every, run, place)

    def _add(
        self, provider: str, table: Table, every: tuple[str, ...], run: Run, place: str
    ) -> None:
        # An option that can have several values is judged with each.
        most = max((len(each(value)) for value in table.entries.values()), default=1)
        for number in range(most):
            held = {
                key: text_of(each(value)[min(number, len(each(value)) - 1)])
                for key, value in table.entries.items()
            }
            one = OptionSet(
                provider=provider,
                options={key: value.text for key, value in held.items()},
                where=place,
                not_text={k: v.kind for k, v in held.items() if v.kind not in {"str", "file"}},
                providers=every,
                environment=dict(run.environment),
            )
            if one not in self.found:
                self.found.append(one)


def _is_amd(name: Value) -> bool:
    return isinstance(name, Text) and is_amd(name.text)


def _argument(call: Call, keyword: str, position: int) -> Value | None:
    if keyword in call.keywords:
        return call.keywords[keyword]
    return call.arguments[position] if position < len(call.arguments) else None


def _is_optimum(call: Call) -> bool:
    """Say whether a call makes a model of Optimum's, or a pipeline on ONNX Runtime."""
    text = ast.unparse(call.node.func)
    accelerator = call.keywords.get("accelerator")
    on_runtime = isinstance(accelerator, Text) and accelerator.text == "ort"
    return text.startswith(_OPTIMUM) or (call.name == "pipeline" and on_runtime)


def _names_in(node: ast.AST, run: Run, depth: int = 0) -> Iterator[str]:
    """Yield the names of providers that an expression compares with or looks up."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            name = full_name(part.value)
            if name.endswith("ExecutionProvider") or is_amd(name):
                yield name
        elif isinstance(part, ast.Name) and depth < 4:
            for value in each(run.names.get(part.id, Open(""))):
                if isinstance(value, Text):
                    yield from _names_in(ast.Constant(value.text), run, depth + 1)
                elif isinstance(value, Open) and value.expression:
                    inner = ast.parse(value.expression, mode="eval")
                    yield from _names_in(inner, run, depth + 1)


def read_python(text: str, where: str, folder: Path) -> Sessions:
    """Return what the sessions of a Python source are given.

    Raises: OptionError where the source is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise OptionError(
            f"this is no Python: {error}", where=where, hint="fix the file first"
        ) from error
    sessions = Sessions(where)
    run = Run(folder, sessions.take)
    run.follow(tree)
    return sessions
