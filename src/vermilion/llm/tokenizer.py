"""Text to tokens and back, by a folder's `tokenizer.json` and the library `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.cached_vocabulary import load_library
from vermilion.llm.chat import ChatTemplate, read_chat_template

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
    if find_spec("tokenizers") is None:
        raise UnsupportedError(
            "reading and writing text needs the package `tokenizers`",
            hint="pip install 'vermilion[llm]'",
        )
    file = folder / NAME
    if not file.is_file():
        raise ModelError(
            f"the folder has no `{NAME}`", where=str(folder), hint="copy it from the model"
        )
    try:
        library = load_library(file, cache)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(
            f"the tokenizer cannot be read: {error}",
            where=str(file),
            hint="copy it from the model again",
        ) from error
    return FolderTokenizer(library, read_chat_template(folder), str(file))
