"""Provider options in C++ and C sources: maps, parallel arrays, and ONNX Runtime's structures."""

from __future__ import annotations

import re

from vermilion.hardware.options.lint import full_name, is_amd
from vermilion.hardware.options.option import OptionSet, unknown
from vermilion.hardware.options.python_sessions import Unread

# `options["key"] = "value";`, `{"key", "value"}`, `.emplace("key", "value")`.
_PAIR = re.compile(
    r'(?:\[\s*"([^"\n]{1,80})"\s*\]\s*=\s*|'
    r'(?:\{|emplace\(|insert\(\s*\{|insert_or_assign\()\s*"([^"\n]{1,80})"\s*,\s*)'
    r'"([^"\n]{0,500})"'
)
_PROVIDER = re.compile(
    r'AppendExecutionProvider(?:_V2)?\s*\(\s*(?:\w+\s*,\s*)?"([A-Za-z]{1,60})"|'
    r"AppendExecutionProvider_(VitisAI|MIGraphX|ROCM)\b|OrtApi.{0,60}_(MIGraphX|ROCM|VitisAI)\b|"
    r'AppendExecutionProvider_V2\s*\([^;]*?"([A-Za-z]{1,60})"'
)
# `OrtMIGraphXProviderOptions options{};` and `options.device_id = 0;`
_STRUCT = re.compile(r"\bOrt(MIGraphX|ROCM)ProviderOptions\s*\*?\s*(\w+)")
_FIELD = re.compile(r"\b(\w+)\s*(?:\.|->)\s*(\w+)\s*=\s*([^;]{1,500});")
# `const char* keys[] = {"a", "b"};` beside `values`.
_ARRAY = re.compile(
    r'\b(\w*(?:keys?|values?)\w*)\s*(?:\[\s*\w*\s*\])?\s*=?\s*\{([^{};]*"[^{};]*)\}'
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*[\s\S]*?\*/')


def read_cpp(text: str, where: str) -> tuple[list[OptionSet], list[Unread]]:
    """Return one option set for each provider that is appended, and what could not be read.

    An option belongs to the first provider that is appended behind it.
    """
    text = _COMMENT.sub(_without_comment, text)
    parallel, arrays = _parallel(text)
    pairs = parallel + [
        (m.start(), m[1] or m[2], _unescape(m[3]))
        for m in _PAIR.finditer(text)
        if not any(begin <= m.start() < end for begin, end in arrays)
    ]
    pairs.sort()
    found: list[OptionSet] = []
    unread: list[Unread] = []
    begin = 0
    for call in _PROVIDER.finditer(text):
        name = full_name(next(part for part in call.groups() if part))
        line = f"{where}:{text.count(chr(10), 0, call.start()) + 1}"
        options = {key: value for at, key, value in pairs if begin <= at < call.end()}
        end = _closing(text, text.find("(", call.start()))
        given = _arguments(text[call.start() : end])
        fields = _fields(text, name, given)
        options |= {key: value for at, key, value in fields if at < call.start()}
        if not options and given and is_amd(name):
            unread.append(Unread(line, f"the options of {name}, which are `{given}`"))
        options |= {key: value for at, key, value in pairs if call.end() <= at < end}
        found.append(OptionSet(name, options, line))
        begin = call.end()
    return found, [one for one in unread if not _is_read(one, found)]


def _is_read(one: Unread, found: list[OptionSet]) -> bool:
    return any(options.where == one.where and options.options for options in found)


def _without_comment(found: re.Match[str]) -> str:
    text = found[0]
    return text if text.startswith('"') else "\n" * text.count("\n")


def _fields(text: str, provider: str, given: str) -> list[tuple[int, str, str]]:
    """Return what is put into the structure of a provider's options that a call is given."""
    owners = {m[2] for m in _STRUCT.finditer(text) if full_name(m[1]) == provider}
    owners &= set(re.findall(r"\w+", given))
    fields = []
    for one in _FIELD.finditer(text):
        if one[1] not in owners:
            continue
        value = one[3].strip()
        string = _STRING.fullmatch(value)
        known = string[1] if string else {"true": "1", "false": "0"}.get(value, value)
        plain = string is not None or re.fullmatch(r"-?\d+(?:\.\d+)?", known) is not None
        fields.append((one.start(), one[2], known if plain else unknown(value)))
    return fields


def _parallel(text: str) -> tuple[list[tuple[int, str, str]], list[tuple[int, int]]]:
    """Return the options of two arrays, one of names and one of values, and where these stand."""
    pairs: list[tuple[int, str, str]] = []
    places: list[tuple[int, int]] = []
    keys: tuple[int, list[str]] | None = None
    for one in _ARRAY.finditer(text):
        strings = [_unescape(s) for s in _STRING.findall(one[2])]
        if "key" in one[1].lower():
            keys = (one.start(), strings)
            places.append(one.span())
        elif keys is not None and len(strings) == len(keys[1]):
            pairs += [(keys[0], key, value) for key, value in zip(keys[1], strings, strict=True)]
            places.append(one.span())
            keys = None
    return pairs, places


def _closing(text: str, opening: int) -> int:
    """Return the place behind the bracket that ends a call."""
    if opening < 0:
        return len(text)
    depth = 0
    for at in range(opening, min(len(text), opening + 4000)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1
    return opening


def _arguments(call: str) -> str:
    """Return what a call gives as options, empty where it gives none."""
    inside = call[call.find("(") + 1 : -1]
    parts = [part.strip() for part in inside.split(",", 1)]
    if parts and parts[0].startswith('"'):
        given = parts[1] if len(parts) > 1 else ""
    else:
        given = inside.strip()
    return "" if given in {"", "{}", "nullptr", "NULL", "0"} else " ".join(given.split())[:80]


def _unescape(text: str) -> str:
    return text.replace("\\\\", "\\")
