"""The lexer loses nothing, and knows what is code from what is not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vermilion.hipify.tokens import broken_tokens, tokenize
from vermilion.hipify.translate import translate

# Pieces of source, and what becomes of each. Put together in any order with space between, the
# result is what becomes of the pieces, put together.
PIECES = [
    ("cudaMalloc(&p, 4);", "hipMalloc(&p, 4);"),
    ("cudaStream_t s;", "hipStream_t s;"),
    ("cublasSgemm_v2", "hipblasSgemm"),
    ("cuda\\\nFree(p);", "hipFree\\\n(p);"),
    ("cub::Sum()", "hipcub::Sum()"),
    ("kernel<<<grid, block, 0, cudaStreamPerThread>>>(x)",
     "kernel<<<grid, block, 0, hipStreamPerThread>>>(x)"),
    ("#include <cuda_runtime.h>\n", "#include <hip/hip_runtime.h>\n"),
    *((same, same) for same in (
        '"cudaMalloc"', '"a \\" cudaFree \\\n b"', "'\"'", "'\\''", "u8\"cudaFree\"",
        '// cudaMalloc "\n', "// goes on \\\n cudaFree\n", "/* cudaFree /* nested */",
        "/\\\n/ cudaFree after a cut slash\n",
        'R"(cudaFree)"', 'R"x(cudaFree)" )y" // )x"', 'u8R"--(\n"cudaFree\\)--"',
        "1'000'000", "0x1.8p-3f", "1e+5", ".5f", "a->b", "x<<=2", "a>>b", "A<B<C>>()", "...",
        "#define F(x) #x##_cuda\n", "my_cudaMalloc", "cudaish", "name$1", "größe", "\f\v", "\r\n",
        "@", "`", "\\", "?", "\x01",
    )),
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.sampled_from([" ", "\n", "\t", " \\\n "]))
def test_nothing_but_the_names_changes(pieces: list[tuple[str, str]], space: str) -> None:
    source = space.join(piece for piece, _ in pieces)
    tokens = tokenize(source)
    assert "".join(tokens.raw(i) for i in range(len(tokens))) == source
    expected = space.join(result for _, result in pieces)
    assert translate(source).text == expected


@given(st.text())
def test_any_text_is_tiled(source: str) -> None:
    tokens = tokenize(source)
    assert "".join(tokens.raw(i) for i in range(len(tokens))) == source
    assert list(tokens.starts) == sorted(set(tokens.starts)) or not source


@given(st.text(alphabet="/*\\\n\"'R()x #<>", max_size=60))
def test_any_mess_of_quotes_and_comments_is_tiled(source: str) -> None:
    tokens = tokenize(source)
    assert "".join(tokens.raw(i) for i in range(len(tokens))) == source
    assert translate(source).text == source


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("a\\\nb c", ["word", "space", "word"]),
        ("/* a /* b */ c", ["comment", "space", "word"]),
        ('R"(")" x', ["raw", "space", "word"]),
        ('R"a( )" )a"', ["raw"]),
        ('R"""( )" """)"""', ["raw"]),  # a mark may be of quotation marks
        ('LR"()"', ["raw"]),
        ("1'000", ["number"]),
        ("'a'", ["char"]),
        ("k<<<1", ["word", "punctuation", "number"]),
        ("#include <a.h>", ["include"]),
        ("# include \"a.h\"", ["include"]),
        ("/* never", ["broken"]),
        ('R"x( )" )y"', ["broken"]),
    ],
)  # fmt: skip
def test_kinds(source: str, kinds: list[str]) -> None:
    assert list(tokenize(source).kinds) == kinds


def test_a_name_across_a_splice_is_one_word() -> None:
    tokens = tokenize("cuda\\\n\\\r\nMalloc")
    assert tokens.word(0) == "cudaMalloc"
    assert tokens.raw(0) == "cuda\\\n\\\r\nMalloc"


def test_broken_quotes_are_found_but_not_in_directives() -> None:
    assert broken_tokens(tokenize('int x = "abc;\n'))
    assert not broken_tokens(tokenize('#error don"t do this\n'))
    assert not broken_tokens(tokenize('#define A \\\n don"t\n'))
    assert not broken_tokens(tokenize('// don"t\nint x;\n'))
    assert broken_tokens(tokenize("int x; /* \n"))


def test_positions_count_from_one() -> None:
    tokens = tokenize("ab\n  cd")
    assert tokens.position(0) == (1, 1)
    assert tokens.position(5) == (2, 3)


def test_200_000_lines_take_less_than_ten_seconds() -> None:
    line = "  value += __shfl_down_sync(0xffffffffu, cudaValue[i + 16], offset);  // a comment\n"
    source = line * 200_000
    begin = time.process_time()
    tokens = tokenize(source)
    assert time.process_time() - begin < 10
    assert tokens.starts[-1] == len(source)


@pytest.mark.parametrize("mess", ['a"', "/*", 'R"(', "'", "\\\n", "<", 'R"x(\n'])
def test_no_mess_takes_long(mess: str) -> None:
    begin = time.process_time()
    tokenize(mess * 20_000)
    assert time.process_time() - begin < 5
