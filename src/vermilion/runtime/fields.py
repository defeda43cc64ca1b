"""Reading JSON that somebody else may have written: every key wanted, every type checked."""

from __future__ import annotations

import json
import math
from typing import cast

from vermilion.errors import ArtifactError

_HINT = "the bundle is damaged or was not written by Vermilion: compile the model again"


class Fields:
    """One JSON object that is taken apart key by key; what nobody took is an error."""

    def __init__(self, value: object, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            raise self._error("is not an object")
        self._left = cast("dict[str, object]", dict(value))

    def text(self, key: str) -> str:
        """Take a string."""
        value = self._take(key)
        if not isinstance(value, str):
            raise self._error(f"has a `{key}` that is not a string")
        return value

    def integer(self, key: str) -> int:
        """Take a whole number of zero or more."""
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._error(f"has a `{key}` that is not a whole number of zero or more")
        return value

    def number(self, key: str) -> float:
        """Take a finite number of zero or more."""
        value = self._take(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(f"has a `{key}` that is not a number")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise self._error(f"has a `{key}` that is too large")
        if not math.isfinite(value) or value < 0:
            raise self._error(f"has a `{key}` that is not a finite number of zero or more")
        return float(value)

    def flag(self, key: str) -> bool:
        """Take true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._error(f"has a `{key}` that is neither true nor false")
        return value

    def items(self, key: str) -> list[object]:
        """Take a list of whatever."""
        value = self._take(key)
        if not isinstance(value, list):
            raise self._error(f"has a `{key}` that is not a list")
        return cast("list[object]", value)

    def items_or_none(self, key: str) -> list[object] | None:
        """Take a list of whatever, or null."""
        if key in self._left and self._left[key] is None:
            del self._left[key]
            return None
        return self.items(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of strings."""
        values = self.items(key)
        if not all(isinstance(value, str) for value in values):
            raise self._error(f"has a `{key}` that is not a list of strings")
        return tuple(cast("list[str]", values))

    def objects(self, key: str) -> list[Fields]:
        """Take a list of objects."""
        return [
            Fields(value, f"{self._where}, {key}[{i}]") for i, value in enumerate(self.items(key))
        ]

    def nested(self, key: str) -> Fields:
        """Take an object of named fields."""
        return Fields(self._take(key), f"{self._where}, {key}")

    def text_map(self, key: str) -> dict[str, str]:
        """Take an object whose values are strings."""
        value = self._take(key)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._error(f"has a `{key}` that is not an object of strings")
        return cast("dict[str, str]", dict(value))

    def keys_left(self) -> tuple[str, ...]:
        """Return the keys that nobody took yet, where the names are data."""
        return tuple(sorted(self._left))

    def finish(self) -> None:
        """Raise where a key is left that nobody asked for."""
        if self._left:
            extra = ", ".join(f"`{key[:40]}`" for key in sorted(self._left)[:5])
            raise self._error(f"has what this version does not know: {extra}")

    def _take(self, key: str) -> object:
        if key not in self._left:
            raise self._error(f"has no `{key}`")
        return self._left.pop(key)

    def _error(self, problem: str) -> ArtifactError:
        return ArtifactError(f"the JSON {problem}", where=self._where, hint=_HINT)


def parse_json(data: bytes, where: str) -> object:
    """Return the value; refuses duplicate keys and numbers that JSON does not have."""
    try:
        value: object = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"this is not JSON that can be read: {error}", where=where, hint=_HINT
        ) from error
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(word: str) -> object:
    raise ValueError(f"`{word}` is not a JSON number")
