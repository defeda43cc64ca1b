"""The tokenizer in a GGUF file's metadata, as the file that the package `tokenizers` reads.

Sources: ggml-org/ggml, `docs/gguf.md` (keys, types of tokens); ggml-org/llama.cpp,
`src/llama-vocab.cpp`, for the expression by which each `tokenizer.ggml.pre` cuts a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from vermilion.errors import ModelError, UnsupportedError

_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6
_SPACE = "\u2581"  # what SentencePiece writes for a space

_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
)  # fmt: skip
_LLAMA3 = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _END
_QWEN2 = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _END
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_SLASH_END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = _CASES % (_SHORT + "?", _SHORT + "?") + r"|\p{N}{1,3}" + _SLASH_END
_TEKKEN = _CASES % ("", "") + r"|\p{N}" + _SLASH_END
_KANJI_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SIGN = r"[!-/:-@\[-`{-~][A-Za-z]+"
_HUNYUAN = (
    _ASCII_SIGN + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# A text is cut by one expression after the other; None: as the library's byte level does.
_CUTS: Mapping[str, tuple[str | None, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "exaone4"), (None,)),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        (r"\p{N}", None),
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        (_LLAMA3,),
    ),
    "lfm2": (_LLAMA3,),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_QWEN2,)),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    "tekken": (_TEKKEN,),
    "hunyuan-dense": (r"\p{N}{1,3}", _KANJI_AND_KANA, _HUNYUAN),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# Of these, a token that stands in the vocabulary is taken whole, and a text begins with a token.
_LIKE_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2")
# Control tokens that end an answer, whatever the metadata names: the turn's end of known templates.
_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<|end_of_text|>", "<|return|>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "<|turn_end|>",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GgufVocabulary:
    """Tokens of a file: the library's file, and the numbers of those that mean something."""

    parts: Mapping[str, object]
    tokens: int
    ends: tuple[int, ...]
    begin: int | None  # what every text begins with
    pad: int | None
    template: str
    named: Mapping[str, str]  # what a chat template may name

    @cached_property
    def file(self) -> str:
        """What the library reads."""
        return json.dumps(self.parts, ensure_ascii=False)


def read_vocabulary(metadata: Mapping[str, object], where: str) -> GgufVocabulary:
    """Return the tokenizer of a file's metadata.

    Raises: UnsupportedError for a kind that is not known; ModelError for a damaged one.
    """
    tokens = _texts(metadata, "tokens", where)
    if len(set(tokens)) != len(tokens):
        raise ModelError("two tokens have the same text", where=where)
    kinds = _numbers(metadata, "token_type", len(tokens), where)
    model = metadata.get("tokenizer.ggml.model")
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if model == "gpt2":
        parts = _byte_level(metadata, tokens, pre, where)
        begins = pre in _LIKE_LLAMA3
    elif model == "llama":
        parts = _sentence_piece(metadata, tokens, kinds, where)
        begins = True
    else:
        raise UnsupportedError(
            f"tokenizers of the kind `{model}` are not read",
            where=where,
            hint="`gpt2` (byte pairs) and `llama` (SentencePiece) are",
        )
    added = [
        _added(number, tokens[number], is_special=kind == _CONTROL)
        for number, kind in enumerate(kinds)
        if kind in (_CONTROL, _USER)
    ]
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    begin = _token(metadata, "bos", tokens)
    begins = bool(metadata.get("tokenizer.ggml.add_bos_token", begins))
    named = {f"{name}_token": _token(metadata, name, tokens) for name in ("bos", "eos", "padding")}
    named = {("pad_token" if key == "padding_token" else key): at for key, at in named.items()}
    return GgufVocabulary(
        file,
        len(tokens),
        _ends(metadata, tokens, kinds),
        begin if begins else None,
        _token(metadata, "padding", tokens),
        str(metadata.get("tokenizer.chat_template", "")),
        {key: tokens[at] for key, at in named.items() if at is not None},
    )


def _texts(metadata: Mapping[str, object], name: str, where: str) -> list[str]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, tuple | list) or not all(isinstance(one, str) for one in found):
        raise ModelError(
            f"the file has no `tokenizer.ggml.{name}`",
            where=where,
            hint="it was made without its tokenizer: take another",
        )
    return list(cast("Sequence[str]", found))


def _numbers(metadata: Mapping[str, object], name: str, count: int, where: str) -> list[Any]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    if found is None:
        return [1] * count
    is_sound = isinstance(found, tuple | list) and len(found) == count
    if not is_sound or not all(isinstance(one, int | float) for one in cast("Any", found)):
        raise ModelError(f"`tokenizer.ggml.{name}` is not of {count:,} tokens", where=where)
    return list(cast("Any", found))


def _token(metadata: Mapping[str, object], name: str, tokens: Sequence[str]) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    is_sound = isinstance(found, int) and not isinstance(found, bool) and 0 <= found < len(tokens)
    return cast("int", found) if is_sound else None


def _ends(
    metadata: Mapping[str, object], tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[int, ...]:
    found = [_token(metadata, name, tokens) for name in ("eos", "eot", "eom")]
    places = {token: at for at, token in enumerate(tokens) if kinds[at] == _CONTROL}
    found += [places.get(token) for token in _ENDS]
    return tuple(dict.fromkeys(at for at in found if at is not None))


def _added(number: int, content: str, *, is_special: bool) -> dict[str, object]:
    return {
        "id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": is_special,
    }  # fmt: skip


def _byte_level(
    metadata: Mapping[str, object], tokens: Sequence[str], pre: str, where: str
) -> dict[str, object]:
    """Return byte pairs: letters stand for bytes, as GPT-2 has them."""
    cuts = _CUTS.get(pre)
    if cuts is None:
        raise UnsupportedError(
            f"a text is cut by the rule `{pre}` (`tokenizer.ggml.pre`), which is not known here",
            where=where,
            hint=f"known: {', '.join(_CUTS)}",
        )
    known = set(tokens)
    merges = [pair.split(" ") for pair in _texts(metadata, "merges", where)]
    are_tokens = all(
        len(pair) == 2 and pair[0] in known and pair[1] in known and pair[0] + pair[1] in known
        for pair in merges
    )
    if not are_tokens:
        raise ModelError("a pair is joined to what is no token", where=where)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps: list[dict[str, object]] = [
        {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        for cut in cuts
        if cut is not None
    ]
    steps.append({**level, "use_regex": cuts[-1] is None})
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": _byte_pairs(tokens, merges, ignore_merges=pre in (*_LIKE_LLAMA3, "tekken")),
    }


def _byte_pairs(
    tokens: Sequence[str], merges: Sequence[Sequence[str]], **settings: object
) -> dict[str, object]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": {token: at for at, token in enumerate(tokens)},
        "merges": merges, **settings,
    }  # fmt: skip


def _sentence_piece(
    metadata: Mapping[str, object], tokens: Sequence[str], kinds: Sequence[int], where: str
) -> dict[str, object]:
    """Return SentencePiece's byte pairs: those joined first whose token has the highest score."""
    scores = _numbers(metadata, "scores", len(tokens), where)
    places = {token: at for at, token in enumerate(tokens) if kinds[at] not in (_CONTROL, _BYTE)}
    pairs = []
    for token in places:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in places and right in places:
                pairs.append((-scores[places[token]], places[left], places[right], left, right))
    pairs.sort(key=lambda row: row[:3])
    unknown = next((tokens[at] for at, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    back: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, space]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": _byte_pairs(
            tokens, [[left, right] for *_, left, right in pairs],
            unk_token=unknown, fuse_unk=True, byte_fallback=True,
        ),
    }  # fmt: skip
