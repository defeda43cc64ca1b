"""Options that the verbs of `vermilion llm` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from vermilion.llm.decoder import EngineOptions
    from vermilion.llm.guidance import Guidance

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A folder with `genai_config.json`.", show_default=False),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A `.gguf` file, a Hugging Face folder, or one with `genai_config.json`.",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option("--threads", "-t", help="Of the CPU; 0: the engine chooses.")]
OnCpu = Annotated[
    bool, typer.Option("--cpu", help="Run on the CPU, whatever provider the folder names.")
]
NewTokens = Annotated[int, typer.Option("--new-tokens", "-g", help="Tokens to generate.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="auto|native|onnxruntime|onnxruntime-genai",
        help="What runs the model; auto: our generated code, and ONNX Runtime where it cannot.",
    ),
]
PrefillOption = Annotated[
    str,
    typer.Option(
        "--prefill",
        metavar="auto|bf16|int8|bfp16|fp32",
        help="In what our generated code computes a prompt; auto: fp32 for float weights, else "
        "bf16, or int8 without BF16.",
    ),
]
Temperature = Annotated[float, typer.Option("--temperature", help="0: always the likeliest token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Choose among so many.")]
TopP = Annotated[float, typer.Option("--top-p", help="Choose among this probability.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed, the same text.")]
Penalty = Annotated[
    float, typer.Option("--repetition-penalty", help="Over 1: what was said comes less often.")
]
MinP = Annotated[
    float, typer.Option("--min-p", help="Choose among what is at least so much of the likeliest.")
]
Presence = Annotated[
    float, typer.Option("--presence-penalty", help="What was generated comes less often; -2 to 2.")
]
Frequency = Annotated[
    float, typer.Option("--frequency-penalty", help="The same, for each time; -2 to 2.")
]
Bias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="TOKEN=N", help="Add N, -100 to 100, to a token's logit."),
]
Lookup = Annotated[
    bool,
    typer.Option(
        "--lookup/--no-lookup",
        help="Read what stood in the text before ahead of its choice: faster, the same tokens.",
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="Ends the answer; may be given several times."),
]


def engine_options(threads: int, on_cpu: bool, engine: str, prefill: str = "auto") -> EngineOptions:
    """Return the options of an engine, as checked by themselves."""
    from vermilion.llm.decoder import EngineOptions

    return EngineOptions(threads, on_cpu, cast("Any", engine), cast("Any", prefill))


def read_biases(given: list[str] | None) -> tuple[tuple[int, float], ...]:
    """Return tokens and what is added to their logits.

    Raises: OptionError for what is not written so.
    """
    from vermilion.errors import OptionError

    found = []
    for text in given or ():
        token, _, bias = text.partition("=")
        try:
            found.append((int(token), float(bias)))
        except ValueError as error:
            raise OptionError(
                f"`--logit-bias {text}` is no token with a number", hint="`--logit-bias 1234=-5`"
            ) from error
    return tuple(found)


def read_schema(file: Path | None) -> Guidance | None:
    """Return what makes the text have the form that a file describes.

    Raises: OptionError where there is no such file.
    """
    from vermilion.llm.guidance import Guidance

    return None if file is None else Guidance("json_schema", read_words(file))


def read_words(file: Path) -> str:
    """Read a file of text.

    Raises: OptionError where there is none, and for bytes that are no text.
    """
    from vermilion.errors import OptionError

    if not file.is_file():
        raise OptionError("no such file", where=str(file), hint="check the path")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(
            f"the file is no text in UTF-8, from byte {error.start} on", where=str(file)
        ) from error
