"""Text to tokens and back, by a folder's `tokenizer.json`, and conversations as text.

A chat template is a program from outside: it runs in jinja2's sandbox, which keeps it from the rest
of Python and from changing what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.files import read_object
from vermilion.llm.vocabulary import load_library

_FILE = "chat_template.jinja"
# What a template may name, by the keys of `tokenizer_config.json`.
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the tokens that it may name."""

    source: str
    where: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    with_tools: str = ""  # another one for conversations with tools, where there is one

    def with_source(self, source: str) -> ChatTemplate:
        """Return another template for the same tokens."""
        return replace(self, source=source, where="the given template", with_tools="")

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
            template = _environment().from_string(self._chosen(tools))
            text: str = template.render(given, add_generation_prompt=add_generation_prompt)
        except jinja2.exceptions.TemplateError as error:
            raise ModelError(
                f"the chat template fails: {error.message}",
                where=self.where,
                hint="are the messages in the order that it wants: user, assistant, user …?",
            ) from error
        except Exception as error:  # a program from outside may fail in any way
            raise ModelError(
                f"the chat template fails: {type(error).__name__}: {error}",
                where=self.where,
                hint="it was not made for these messages",
            ) from error
        return text

    def _chosen(self, tools: Sequence[object] | None) -> str:
        return self.with_tools if tools and self.with_tools else self.source


def read_chat_template(folder: Path) -> ChatTemplate:
    """Read a folder's template; one without is fine as long as nobody uses it.

    Raises: ModelError where `tokenizer_config.json` is damaged.
    """
    file, own = folder / "tokenizer_config.json", folder / _FILE
    about = read_object(file) if file.is_file() else {}
    tokens = {name: _text_of(about.get(name)) for name in _TOKENS}
    tokens = {name: text for name, text in tokens.items() if text}
    if own.is_file():
        return ChatTemplate(own.read_text(encoding="utf-8", errors="replace"), str(own), tokens)
    named = _templates_of(about.get("chat_template"))
    source = named.get("default", next(iter(named.values()), ""))
    return ChatTemplate(source, str(file), tokens, named.get("tool_use", ""))


def _text_of(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _templates_of(given: object) -> dict[str, str]:
    """Return templates by their names, one without a name as the default."""
    if isinstance(given, str):
        return {"default": given}
    rows = [row for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    return {str(row.get("name")): str(row.get("template", "")) for row in rows}


def _environment() -> Any:
    from jinja2.ext import loopcontrols

    from vermilion.llm.template_sandbox import Answers, BoundedEnvironment

    made = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Answers]
    )
    made.filters["tojson"] = _as_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return made


def _as_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.exceptions.TemplateError(message)


NAME = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerOptions:
    """What onnxruntime-genai starts with: no tokens are added, special ones are not shown."""

    add_special_tokens: bool = False
    skip_special_tokens: bool = True

    def with_changes(self, changes: Mapping[str, object]) -> TokenizerOptions:
        """Return the options with some changed; texts such as `"true"` are taken too.

        Raises: OptionError.
        """
        known = {
            "add_special_tokens": self.add_special_tokens,
            "skip_special_tokens": self.skip_special_tokens,
        }
        for name, value in changes.items():
            word = str(value).lower()
            if name not in known or word not in ("true", "false", "1", "0"):
                raise OptionError(
                    f"`{name}` = {value!r} is no option of a tokenizer",
                    hint=f"there are {' and '.join(known)}, each true or false",
                )
            known[name] = word in ("true", "1")
        return TokenizerOptions(**known)


class FolderTokenizer:
    """The tokenizer of a folder."""

    def __init__(self, library: Any, template: ChatTemplate, where: str) -> None:
        self._library, self._template, self._where = library, template, where
        self.options = TokenizerOptions()

    @property
    def has_template(self) -> bool:
        """Whether the model takes conversations."""
        return bool(self._template.source)

    def another(self) -> FolderTokenizer:
        """Return one with options of its own; the vocabulary, which is only read, is the same."""
        return FolderTokenizer(self._library, self._template, self._where)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens that are written in it are recognised.

        Raises: OptionError for what is no text.
        """
        _check_text(text)
        added = self.options.add_special_tokens
        return list(self._library.encode(text, add_special_tokens=added).ids)

    def added_before(self) -> tuple[int, ...]:
        """Return the tokens that are added before every text, where that is asked for."""
        plain, whole = (
            list(self._library.encode("a", add_special_tokens=added).ids) for added in (False, True)
        )
        count = len(whole) - len(plain)
        places = (at for at in range(count + 1) if whole[at : at + len(plain)] == plain)
        return tuple(whole[: next(places, 0)])

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens."""
        hidden = self.options.skip_special_tokens
        return str(self._library.decode([int(t) for t in tokens], skip_special_tokens=hidden))

    def token_id(self, token: str) -> int:
        """Return the number of a token.

        Raises: OptionError where there is no such token.
        """
        found = self._library.token_to_id(token)
        if found is None:
            raise OptionError(f"the tokenizer has no token `{token}`", where=self._where)
        return int(found)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        template: str = "",
        tools: Sequence[object] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Write a conversation as the model was trained to read it.

        Raises: OptionError where there is no template; ModelError where it fails.
        """
        chosen = self._template.with_source(template) if template else self._template
        return chosen.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def create_stream(self) -> TextStream:
        """Return a reader of tokens that come one at a time."""
        return TextStream(self)


class TextStream:
    """Text of tokens as they come: a letter of several tokens waits until it is whole."""

    def __init__(self, tokenizer: FolderTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = 0  # tokens whose text was given
        self._start = 0  # where the text begins that the next ones are compared with

    def decode(self, token: int) -> str:
        """Return the text that this token completes, which may be none."""
        self._tokens.append(int(token))
        before = self._tokenizer.decode(self._tokens[self._start : self._shown])
        whole = self._tokenizer.decode(self._tokens[self._start :])
        if whole.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        # A decoder may join words by what stands before, so the last piece is kept as a start.
        del self._tokens[: self._start]
        self._start, self._shown = self._shown - self._start, len(self._tokens)
        return whole[len(before) :]


def _check_text(text: object) -> None:
    """Raise OptionError for what the library would raise one of several errors for."""
    if not isinstance(text, str):
        raise OptionError(f"a text is a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a console come so, too
        raise OptionError(
            f"the text has something at {error.start} that is no letter: {error.reason}",
            hint="write it in UTF-8",
        ) from error


def open_tokenizer(folder: Path, cache: Path | None = None) -> FolderTokenizer:
    """Open a folder's tokenizer; `cache` keeps large ones in a form that loads faster.

    Raises: ModelError where it is missing or damaged; UnsupportedError without `tokenizers`.
    """
    check_library()
    file = folder / NAME
    if not file.is_file():
        raise ModelError(
            f"the folder has no `{NAME}`", where=str(folder), hint="copy it from the model"
        )
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ModelError(
            f"the tokenizer cannot be read: {error}",
            where=str(file),
            hint="copy it from the model again",
        ) from error
    return open_tokenizer_of(data, read_chat_template(folder), str(file), cache)


def open_tokenizer_of(
    data: bytes, template: ChatTemplate, where: str, cache: Path | None = None
) -> FolderTokenizer:
    """Open the tokenizer of a file's bytes; see `open_tokenizer`."""
    check_library()
    try:
        library = load_library(data, cache)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(
            f"the tokenizer cannot be read: {error}",
            where=where,
            hint="copy it from the model again",
        ) from error
    return FolderTokenizer(library, template, where)


def check_library() -> None:
    """Raise UnsupportedError without `tokenizers`."""
    if find_spec("tokenizers") is None:
        raise UnsupportedError(
            "reading and writing text needs the package `tokenizers`",
            hint="pip install 'vermilion[llm]'",
        )
