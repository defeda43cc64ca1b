"""Tokenizers from a file's metadata, against the libraries that models were trained with."""

from __future__ import annotations

import io
from typing import Any

import pytest

from gguf_files import vocabulary
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.source.gguf_tokenizer import _CUTS, read_vocabulary
from vermilion.llm.tokenizer import ChatTemplate, FolderTokenizer, open_tokenizer_of

TEXTS = (
    "The capital of France is Paris.", "  two spaces,\n\nlines\tand tabs  ", "naïve café — 東京 😀",
    "x = [1234567, 3.14]; don't!", "", " ", "\n", "A",
)  # fmt: skip


def opened(metadata: dict[str, object]) -> FolderTokenizer:
    own = read_vocabulary(metadata, "here")
    return open_tokenizer_of(own.file.encode(), ChatTemplate(own.template, "here"), "here")


@pytest.mark.needs("tokenizers", "sentencepiece")
@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentence_piece_cuts_texts_as_the_library_does(has_prefix: bool) -> None:
    import sentencepiece

    out = io.BytesIO()
    lines = [*TEXTS[:4] * 20, "Paris is the capital of France, and Tokyo of Japan. " * 5]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=340, model_type="bpe",
        byte_fallback=True, add_dummy_prefix=has_prefix, remove_extra_whitespaces=False,
        normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    theirs: Any = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    count = theirs.get_piece_size()
    kinds = [
        2 if theirs.is_unknown(at) else 3 if theirs.is_control(at) else 6 if theirs.is_byte(at)
        else 1 for at in range(count)
    ]  # fmt: skip
    ours = opened(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [theirs.id_to_piece(at) for at in range(count)],
            "tokenizer.ggml.scores": [theirs.get_score(at) for at in range(count)],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.add_space_prefix": has_prefix,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
    for text in TEXTS:
        found = ours.encode(text)
        assert found == theirs.encode(text), text
        assert ours.decode(found) == theirs.decode(found)


@pytest.mark.needs("tokenizers")
@pytest.mark.parametrize("pre", _CUTS)
def test_byte_pairs_lose_nothing(pre: str) -> None:
    ours = opened({**vocabulary(320), "tokenizer.ggml.pre": pre})
    for text in TEXTS:
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.needs("tokenizers")
def test_signs_go_with_the_letters_behind_them_where_the_rule_says_so() -> None:
    from tokenizers import Tokenizer

    file = read_vocabulary({**vocabulary(320), "tokenizer.ggml.pre": "hunyuan-dense"}, "here").file
    cut = Tokenizer.from_str(file).pre_tokenizer.pre_tokenize_str("a_key [the] x--; 12345 京と")
    begins = [start for _, (start, _) in cut]
    assert begins == [0, 1, 5, 7, 10, 11, 13, 16, 17, 20, 22, 23]


@pytest.mark.needs("tokenizers")
def test_digits_are_cut_as_the_rule_says() -> None:
    pairs = {**vocabulary(320), "tokenizer.ggml.merges": ["1 2", "12 3", "123 4"]}
    tokens = list(pairs["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    pairs["tokenizer.ggml.tokens"] = [*tokens[:-3], "12", "123", "1234"]

    def pieces(pre: str) -> list[str]:
        ours = opened({**pairs, "tokenizer.ggml.pre": pre})
        return [ours.decode([token]) for token in ours.encode("1234")]

    assert pieces("llama-bpe") == pieces("lfm2") == pieces("hunyuan-dense") == ["123", "4"]
    assert pieces("gpt-2") == ["1234"]
    assert pieces("qwen2") == ["1", "2", "3", "4"]
    assert pieces("smollm") == ["1", "2", "3", "4"]


@pytest.mark.needs("tokenizers")
def test_what_ends_and_begins_a_text() -> None:
    own = read_vocabulary(vocabulary(320), "here")
    assert (own.begin, own.ends, own.pad) == (0, (1,), 2)
    tokens = ["<s>", "</s>", "<|eot_id|>", *list(vocabulary(320)["tokenizer.ggml.tokens"])[3:]]  # type: ignore[call-overload]
    metadata = {**vocabulary(320), "tokenizer.ggml.tokens": tokens}
    own = read_vocabulary({**metadata, "tokenizer.ggml.add_bos_token": False}, "here")
    assert (own.begin, own.ends) == (None, (1, 2))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.tokens": None}, ModelError, "no `tokenizer.ggml.tokens`"),
        ({"tokenizer.ggml.token_type": [1, 1]}, ModelError, "is not of 320 tokens"),
        ({"tokenizer.ggml.merges": ["a zz"]}, ModelError, "joined to what is no token"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, ModelError, "two tokens have the same text"),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedError, "of the kind `rwkv`"),
        ({"tokenizer.ggml.pre": "new"}, UnsupportedError, "cut by the rule `new`"),
    ],
)
def test_what_is_not_read(change: dict[str, object], error: type[Exception], words: str) -> None:
    metadata = {key: one for key, one in {**vocabulary(320), **change}.items() if one is not None}
    with pytest.raises(error, match=words):
        read_vocabulary(metadata, "here")
