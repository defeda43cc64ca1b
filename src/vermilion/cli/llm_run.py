"""`vermilion llm generate` and `chat`: what starts an engine."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.llm_options import (
    Bias,
    EngineOption,
    Frequency,
    Lookup,
    MinP,
    Model,
    NewTokens,
    OnCpu,
    Penalty,
    PrefillOption,
    Presence,
    Seed,
    Stop,
    Temperature,
    Threads,
    TopK,
    TopP,
    engine_options,
    read_biases,
    read_schema,
)
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.llm.generate import Generated


@verb("llm generate")
def generate(
    terminal: Terminal,
    folder: Model,
    *,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="What to answer.")],
    new_tokens: NewTokens = 128,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    temperature: Temperature = 0.0,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Bias = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", metavar="N", help="In `--json`: how likely each token was, and N others."
        ),
    ] = None,
    beams: Annotated[
        int, typer.Option("--beams", help="Continuations that are followed; prints at the end.")
    ] = 1,
    stop: Stop = None,
    lookup: Lookup = True,
    json_schema: Annotated[
        Path | None,
        typer.Option("--json-schema", metavar="FILE", help="Answer in JSON of this schema."),
    ] = None,
    engine: EngineOption = "auto",
    prefill: PrefillOption = "auto",
    threads: Threads = 0,
    on_cpu: OnCpu = False,
) -> Result:
    """Answer a prompt, printing tokens as they come, and say how fast it was."""
    from dataclasses import asdict

    from vermilion.llm.generate import Sampling
    from vermilion.llm.generate import generate as generate_text

    sampling = Sampling(
        new_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        repetition_penalty,
        beams,
        tuple(stop or ()),
        read_schema(json_schema),
        min_p,
        presence_penalty,
        frequency_penalty,
        read_biases(logit_bias),
        logprobs,
        lookup,
    )
    made = generate_text(
        folder,
        prompt,
        sampling,
        engine_options(threads, on_cpu, engine, prefill),
        as_chat=not raw,
        on_text=None if terminal.as_json else _show,
    )
    return Result(asdict(made), lambda: _generated_view(made))


@verb("llm chat")
def chat(
    terminal: Terminal,
    folder: Model,
    *,
    system: Annotated[
        str, typer.Option("--system", metavar="TEXT", help="What the model is told first.")
    ] = "",
    new_tokens: NewTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Bias = None,
    stop: Stop = None,
    lookup: Lookup = True,
    engine: EngineOption = "auto",
    prefill: PrefillOption = "auto",
    threads: Threads = 0,
    on_cpu: OnCpu = False,
) -> Result:
    """Talk with a model: one message a line on stdin; an empty line or end of file ends it.

    `/new` begins another conversation. Only what is new is read: the cache holds the rest.
    Ctrl-C ends an answer; a second one, or one where a message is awaited, the program.
    """
    from dataclasses import asdict

    from vermilion.llm.generate import Conversation, Sampling
    from vermilion.llm.open_model import open_model

    sampling = Sampling(
        new_tokens, temperature, top_k, top_p, seed, repetition_penalty, stop=tuple(stop or ()),
        min_p=min_p, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        logit_bias=read_biases(logit_bias), lookup=lookup,
    )  # fmt: skip
    opened = open_model(folder, engine_options(threads, on_cpu, engine, prefill))
    talk = Conversation(opened, sampling, system)
    turns: list[dict[str, object]] = []
    speak = None if terminal.as_json else _show
    for line in _lines(terminal, opened.engine, opened.reason):
        if line == "/new":
            talk.start_again()
            continue
        with _until_interrupted() as should_stop:
            made = talk.answer(line, speak, should_stop)
        turns.append({"message": line, **asdict(made)})
        if not terminal.as_json:
            _show(f"\n\n[{_speed_words(made)}]\n")
    data = {"engine": opened.engine, "engine_reason": opened.reason, "turns": turns}
    return Result(data, lambda: f"{len(turns)} turn{'' if len(turns) == 1 else 's'}")


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Yield what says whether Ctrl-C was pressed, which ends nothing the first time."""
    pressed = threading.Event()

    def press(number: int, frame: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # another thread has no signals
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _lines(terminal: Terminal, engine: str, reason: str) -> Iterator[str]:
    """Yield the messages; a person is shown where to write."""
    ask = sys.stdin.isatty() and not terminal.as_json
    if ask:
        _show(f"{_run_by(engine, reason)}. An empty line ends the conversation.\n")
    while True:
        if ask:
            _show("> ")
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise OptionError(
                f"what stdin gives is no {error.encoding} text", hint="write it in UTF-8"
            ) from error
        if not line.strip():
            return
        yield line.strip()


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _generated_view(made: Generated) -> RenderableType:
    return (
        f"\n\n{_speed_words(made)}, loaded in {made.load_s:.1f} s, peak {made.peak_rss_mb:.0f} MB\n"
        f"{_run_by(made.engine, made.engine_reason)}"
        + (f"\nweights: {'; '.join(made.weights)}" if made.weights else "")
    )


def _speed_words(made: Generated) -> str:
    return (
        f"{made.new_tokens} tokens at {made.decode_tokens_per_s:.1f} tokens/s after a prompt of"
        f" {made.prompt_tokens} at {made.prefill_tokens_per_s:.1f} tokens/s (first token after"
        f" {made.ttft_ms:.0f} ms)"
        + (f"; {made.read_ahead_taken} of them read ahead" if made.read_ahead_taken else "")
    )


def _run_by(engine: str, reason: str) -> str:
    return f"run by {engine}: {reason}" if reason else f"run by {engine}"
