"""The reference of the Python names, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import vermilion
from vermilion import errors, export, genai

_LINE = 88  # a signature that is longer has a line a parameter

RETURNED = (
    "vermilion.runtime.session:Session",
    "vermilion.runtime.report:Report",
    "vermilion.runtime.summary:Summary",
    "vermilion.inspection:Inspection",
    "vermilion.inspection:Prediction",
    "vermilion.quantization:QuantizedFile",
    "vermilion.quantize.result:Quantized",
    "vermilion.quantize.guard:Promise",
    "vermilion.quantize.options:Options",
    "vermilion.export:ExportReport",
)
"""What the functions take and return, in the order in which a reader meets it."""

_ELSEWHERE = {"vermilion": ("__version__", "VermilionError"), "vermilion.export": ("export_model",)}


def api_page(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """Return the page; `table` makes one of Markdown."""
    blocks = [
        "# API reference",
        "Made by `python tools/tables.py` from the docstrings. What is not here may change with "
        "any version. Arguments behind the `*` are given by name. The package is typed "
        "(`py.typed`).",
        "## vermilion",
        "A name is loaded when it is first used: `import vermilion` costs nothing. "
        "`vermilion.__version__` is the version.",
    ]
    for name in public_names(vermilion):
        blocks += section(name, getattr(vermilion, name), table)
    blocks += ["## What they take and return"]
    for home in RETURNED:
        module, _, name = home.partition(":")
        blocks += section(name, getattr(import_module(module), name), table, import_line=True)
    blocks += ["## vermilion.errors", errors_text(table)]
    blocks += ["## vermilion.export", f"{_plain(export.__doc__ or '')} See [PyTorch](pytorch.md)."]
    for name in public_names(export):
        if f"vermilion.export:{name}" not in RETURNED:
            blocks += section(name, getattr(export, name), table)
    ort = "ONNX Runtime's names; what each of them does is in [onnxruntime.md](onnxruntime.md)."
    blocks += ["## vermilion.ort", ort]
    blocks += ["## vermilion.genai", f"{_plain(genai.__doc__ or '')} See [llm.md](llm.md)."]
    for name in public_names(genai):
        blocks += section(name, getattr(genai, name), table)
    return "\n\n".join(blocks) + "\n"


def public_names(module: Any) -> list[str]:
    """Return the names of a module that have a section: those of `__all__`."""
    return [name for name in module.__all__ if name not in _ELSEWHERE.get(module.__name__, ())]


def section(
    name: str,
    thing: Any,
    table: Callable[[list[str], list[list[str]]], str],
    *,
    import_line: bool = False,
) -> list[str]:
    """Return the blocks about a function, a class, or an object of one."""
    if inspect.isfunction(thing):
        return [f"### {name}", _code(signature(name, thing)), *paragraphs(thing.__doc__ or "")]
    if not inspect.isclass(thing):  # an object: what can be done with it is its class's
        kind = type(thing).__name__
        return [f"### {name}", f"The `{kind}` of this process."]
    blocks = [f"### {name}"]
    if import_line:
        blocks.append(f"In `{thing.__module__}`.")
    own = thing.__dict__.get("__init__")
    made_by = None if dataclasses.is_dataclass(thing) or not inspect.isfunction(own) else own
    if made_by is not None and _parameters(made_by):
        blocks.append(_code(signature(name, made_by)))
    blocks += paragraphs(thing.__doc__ or "")
    if made_by is not None and made_by.__doc__:
        blocks += paragraphs(made_by.__doc__)
    if dataclasses.is_dataclass(thing):
        rows = [
            [f"`{field.name}`", f"`{_escaped(str(field.type))}`"]
            for field in dataclasses.fields(thing)
            if not field.name.startswith("_")
        ]
        blocks.append(table(["field", "type"], rows))
    if lines := [_member(key, value) for key, value in members(thing)]:
        blocks.append("\n".join(lines))
    return blocks


def members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that have a docstring, bases last."""
    seen = set()
    for base in thing.__mro__:
        if not base.__module__.startswith("vermilion"):
            continue
        for name, value in vars(base).items():
            is_member = isinstance(value, property | classmethod) or inspect.isfunction(value)
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        kind = value.fget.__annotations__.get("return", "") if value.fget else ""
        return f"- `{name}: {kind}`: {_plain(value.__doc__ or '')}"
    function = value.__func__ if isinstance(value, classmethod) else value
    return f"- `{_one_line(name, function)}`: {_plain(function.__doc__ or '')}"


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a signature on a line, or with a line a parameter where it is long."""
    line = _one_line(name, function)
    if len(line) <= _LINE:
        return line
    result = _result(function)
    rows = "".join(f"    {one},\n" for one in _parameters(function))
    return f"{name}(\n{rows}){result}"


def _one_line(name: str, function: Callable[..., Any]) -> str:
    return f"{name}({', '.join(_parameters(function))}){_result(function)}"


def _result(function: Callable[..., Any]) -> str:
    annotation = inspect.signature(function).return_annotation
    is_said = annotation is not inspect.Signature.empty and function.__name__ != "__init__"
    return f" -> {annotation}" if is_said else ""


def _parameters(function: Callable[..., Any]) -> list[str]:
    found: list[str] = []
    starred = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            found.append("*")
        found.append(_parameter(parameter))
    return found


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        # A function has an address in its text.
        text += f" = {default.__name__ if inspect.isfunction(default) else repr(default)}"
    return text


_ARGUMENT = re.compile(r"    (\w+): (.*)")


def arguments_described(function: Callable[..., Any]) -> list[str]:
    """Return the names that the docstring's `Args:` describes."""
    text = inspect.cleandoc(function.__doc__ or "")
    _, _, behind = text.partition("\nArgs:\n")
    return [
        found[1]
        for line in behind.split("\n\n")[0].splitlines()
        if (found := _ARGUMENT.match(line))
    ]


def paragraphs(docstring: str) -> list[str]:
    """Return a docstring as blocks of Markdown: `Args:` as a list, all else as it is."""
    blocks = []
    for block in inspect.cleandoc(docstring).split("\n\n"):
        head, _, rest = block.partition("\n")
        if head != "Args:":
            blocks.append(_plain(block))
            continue
        rows: list[str] = []
        for line in rest.splitlines():
            if found := _ARGUMENT.match(line):
                rows.append(f"- `{found[1]}`: {found[2]}")
            else:
                rows[-1] += f" {line.strip()}"
        blocks.append("\n".join(rows))
    return blocks


def errors_text(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """Return the tree of exceptions, with the code that a command ends with."""
    text = (
        "All that is raised on purpose is a `VermilionError`: `message` says what is wrong, "
        "`where` in which file, node or operator, `hint` what to do."
    )
    kinds: Sequence[type[errors.VermilionError]] = [
        errors.VermilionError,
        *errors.VermilionError.__subclasses__(),
    ]
    rows = [
        [f"`{kind.__name__}`", _plain(kind.__doc__ or ""), str(kind.exit_code)]
        for kind in kinds
        if kind.__module__ == errors.__name__
    ]
    return f"{text}\n\n{table(['error', 'what is at fault', 'exit code'], rows)}"


def _plain(text: str) -> str:
    """Return a text on one line."""
    return " ".join(inspect.cleandoc(text).split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"```text\n{text}\n```"
