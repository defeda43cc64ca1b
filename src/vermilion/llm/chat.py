"""Conversations as text, by the template that a model brings along.

A template is a program from outside: it runs in jinja2's sandbox, which keeps it from the rest of
Python and from changing what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.json_file import read_object

_FILE = "chat_template.jinja"
# What a template may name, by the keys of `tokenizer_config.json`.
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the tokens that it may name."""

    source: str
    where: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def with_source(self, source: str) -> ChatTemplate:
        """Return another template for the same tokens."""
        return replace(self, source=source, where="the given template")

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text of a conversation.

        Raises: OptionError without a template, or where it refuses the messages; ModelError where
        it fails.
        """
        if not self.source:
            raise OptionError(
                "the model has no chat template",
                where=self.where,
                hint="`--raw` continues the text as it is",
            )
        try:
            import jinja2
        except ImportError as error:
            raise UnsupportedError(
                "chat templates need the package `jinja2`", hint="pip install 'vermilion[llm]'"
            ) from error
        given = {"messages": messages, "tools": tools, **self.tokens}
        try:
            template = _environment().from_string(self.source)
            text: str = template.render(given, add_generation_prompt=add_generation_prompt)
        except jinja2.exceptions.TemplateError as error:
            raise ModelError(
                f"the chat template fails: {error.message}",
                where=self.where,
                hint="are the messages in the order that it wants: user, assistant, user …?",
            ) from error
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ModelError(
                f"the chat template fails: {type(error).__name__}: {error}",
                where=self.where,
                hint="it was not made for these messages",
            ) from error
        return text


def read_chat_template(folder: Path) -> ChatTemplate:
    """Read a folder's template; one without is fine as long as nobody uses it.

    Raises: ModelError where `tokenizer_config.json` is damaged.
    """
    file, own = folder / "tokenizer_config.json", folder / _FILE
    about = read_object(file) if file.is_file() else {}
    tokens = {name: _text_of(about.get(name)) for name in _TOKENS}
    source, where = _source_of(about.get("chat_template")), str(file)
    if own.is_file():
        source, where = own.read_text(encoding="utf-8", errors="replace"), str(own)
    return ChatTemplate(source, where, {name: text for name, text in tokens.items() if text})


def _text_of(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _source_of(given: object) -> str:
    """Return the default of several templates, or the one that there is."""
    if isinstance(given, str):
        return given
    rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    named = {str(row.get("name")): str(row.get("template", "")) for row in rows}
    return named.get("default", next(iter(named.values()), ""))


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    made.filters["tojson"] = _as_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return made


def _as_json(value: object, indent: int | None = None, **_: object) -> str:
    """jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.exceptions.TemplateError(message)
