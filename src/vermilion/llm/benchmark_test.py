"""The vendor's measurement: what is timed, how prompts are made, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_llama
from tiny_llama import Tiny
from vermilion.errors import OptionError
from vermilion.llm.benchmark import BenchmarkRequest, Times, run_benchmark
from vermilion.llm.decoder import EngineOptions

OPTIONS = EngineOptions(threads=1, engine="onnxruntime")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama.write_folder(tmp_path / "model", Tiny(bits=4))


def quiet(text: str) -> None:
    pass


@pytest.mark.needs("tokenizers")
def test_each_length_has_its_sections(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a short text ")
    told: list[str] = []
    request = BenchmarkRequest((32, 8), tmp_path / "p.txt", new_tokens=4, repeat=3, warmup=1)
    done = run_benchmark(folder, request, OPTIONS, told.append)
    assert [one.prompt_tokens for one in done.results] == [32, 8]
    for one in done.results:
        assert (len(one.prompt.seconds), one.prompt.tokens) == (3, one.prompt_tokens)
        assert len(one.sampling.seconds) == 3
        assert len(one.generation.seconds) == 3 * 3
        parts = sum(one.prompt.seconds) + sum(one.sampling.seconds) + sum(one.generation.seconds)
        assert sum(one.whole.seconds) == pytest.approx(parts)
        assert one.peak_rss_mb > 0
    assert sum("warm-up" in line for line in told) == 2
    assert sum("run 3" in line for line in told) == 2


@pytest.mark.needs("tokenizers")
def test_without_lengths_the_whole_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("twelve bytes")
    request = BenchmarkRequest((), tmp_path / "p.txt", new_tokens=1, repeat=1, warmup=0)
    done = run_benchmark(folder, request, OPTIONS, quiet)
    assert [one.prompt_tokens for one in done.results] == [12]
    assert done.results[0].generation.tokens_per_s == 0.0
    request = BenchmarkRequest((), None, new_tokens=1, repeat=1, warmup=0)
    assert run_benchmark(folder, request, OPTIONS, quiet).results[0].prompt_tokens == 16


def test_prompts_over_the_context(folder: Path) -> None:
    request = BenchmarkRequest((250,), None, new_tokens=7)
    with pytest.raises(OptionError, match="prompt of 250 tokens and 7 that follow are over"):
        run_benchmark(folder, request, OPTIONS, quiet)


@pytest.mark.needs("tokenizers")
def test_a_text_over_the_context(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("x" * 300)
    with pytest.raises(OptionError, match="prompt of 300 tokens"):
        run_benchmark(folder, BenchmarkRequest((), tmp_path / "p.txt"), OPTIONS, quiet)


def test_prompts_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        run_benchmark(folder, BenchmarkRequest((8,), tmp_path / "no.txt"), OPTIONS, quiet)
    (tmp_path / "p.bin").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(OptionError, match="no UTF-8"):
        run_benchmark(folder, BenchmarkRequest((8,), tmp_path / "p.bin"), OPTIONS, quiet)


def test_times_are_what_they_say() -> None:
    times = Times((0.1, 0.3, 0.2), tokens=4)
    assert times.average == pytest.approx(0.2)
    assert times.median == 0.2
    assert times.deviation == pytest.approx(0.1)
    assert times.tokens_per_s == pytest.approx(20)
    assert (Times(()).average, Times((1.0,)).deviation) == (0.0, 0.0)


@pytest.mark.parametrize(
    "wrong", [{"lengths": (0,)}, {"new_tokens": 0}, {"repeat": 0}, {"warmup": -1}]
)
def test_numbers_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        BenchmarkRequest(**wrong)  # type: ignore[arg-type]
