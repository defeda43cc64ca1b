"""Text from a prompt, token by token, and how fast it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError
from vermilion.llm.stock_engine import EngineOptions, open_folder, tokens_of
from vermilion.memory import peak_rss_mb


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature` 0: always the likeliest."""

    new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.new_tokens < 1:
            raise OptionError("at least one token is generated", hint="`-g 64`")
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 1:
            raise OptionError("the temperature is 0 or more, top-p over 0 up to 1, top-k 1 or more")

    def search(self, prompt: int) -> dict[str, object]:
        """Give the search options of onnxruntime-genai for a prompt of so many tokens."""
        options: dict[str, object] = {
            "max_length": prompt + self.new_tokens,
            "do_sample": self.temperature > 0,
        }
        if self.temperature > 0:
            options |= {
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "random_seed": self.seed,
            }
        return options


@dataclass(frozen=True)
class Generated:
    """A text and its speed. `decode_tokens_per_s` is 0 where only one token came."""

    text: str
    engine: str
    prompt_tokens: int
    new_tokens: int
    load_s: float
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_mb: float


def generate(
    folder: Path,
    prompt: str,
    sampling: Sampling,
    options: EngineOptions,
    *,
    as_chat: bool = True,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Continue a prompt; `on_text` is given each piece as it comes.

    Raises: OptionError for a prompt over the model's context, and what `open_folder` raises.
    """
    if not prompt:
        raise OptionError("the prompt is empty", hint="`-p 'What is the capital of France?'`")
    begin = time.perf_counter()
    opened = open_folder(folder, options)
    load_s = time.perf_counter() - begin
    tokens = opened.encode(prompt, as_chat=as_chat)
    opened.check_room(len(tokens), sampling.new_tokens)
    stream: Any = opened.tokenizer.create_stream()
    generator = opened.generator(sampling.search(len(tokens)))
    pieces: list[str] = []
    moments = [time.perf_counter()]
    generator.append_tokens(tokens)
    for token in tokens_of(generator):
        moments.append(time.perf_counter())
        piece = _plain(stream.decode(token))
        pieces.append(piece)
        if on_text is not None:
            on_text(piece)
    first_s = moments[1] - moments[0]
    rest_s = moments[-1] - moments[1]
    made = len(moments) - 1
    return Generated(
        text="".join(pieces),
        engine=opened.engine,
        prompt_tokens=len(tokens),
        new_tokens=made,
        load_s=load_s,
        ttft_ms=first_s * 1e3,
        prefill_tokens_per_s=len(tokens) / first_s,
        decode_tokens_per_s=(made - 1) / rest_s if made > 1 else 0.0,
        peak_rss_mb=peak_rss_mb(),
    )


def _plain(text: str) -> str:
    """Leave out control characters: a model may write escape codes for terminals."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")
