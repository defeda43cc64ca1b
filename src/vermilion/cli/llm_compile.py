"""`vermilion llm compile`: a language model → a file for programs in C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Facts
from vermilion.cli.llm_options import Model, PrefillOption
from vermilion.cli.options import CacheDir, bytes_for_people
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.llm.ahead.compile import CompiledDecoder


@verb("llm compile", limits_threads=True)
def compile(
    terminal: Terminal,
    model: Model,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME.so|.a|.o|.rai|DIR",
            help="A library with NAME.h to call from C, a file for the C library, or a new folder "
            "for onnxruntime-genai with our plugin.",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET,…",
            help="Processors to compile for, `cpu` is this one; a library may have several.",
        ),
    ] = "cpu",
    prefill: PrefillOption = "auto",
    context: Annotated[
        int,
        typer.Option("--context", metavar="TOKENS", help="The longest sequence; 0: the model's."),
    ] = 0,
    cache_dir: CacheDir = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign", metavar="KEY.pem", help="Sign it, but a library: who trusts the key runs it."
        ),
    ] = None,
) -> Result:
    """Compile a language model for programs without Python: tokens in, logits out.

    The caller has the memory of each sequence. What is written is tried against our engine.
    """
    from vermilion.llm.ahead.compile import compile_decoder
    from vermilion.store.ed25519 import read_signing_key

    found = compile_decoder(
        model,
        output,
        targets=target,
        prefill=prefill,
        context=context,
        key=None if sign is None else read_signing_key(sign),
        cache=cache_dir,
        progress=terminal.progress,
    )
    if not found.tried:
        terminal.warn(
            f"not tried: this processor is none of {', '.join(found.targets)}, so that its code "
            "does not run here"
        )
    return Result(found.as_json(), lambda: _view(found))


def _view(found: CompiledDecoder) -> RenderableType:
    facts: list[tuple[str, str | Path]] = [("written", found.path)]
    if found.library is not None:
        facts.append(("header", found.library.header))
    facts += [
        ("for", ", ".join(found.targets)),
        ("size", bytes_for_people(found.size_bytes)),
        ("longest sequence", f"{found.context:,} tokens"),
    ]
    if found.tried:
        facts.append(("tried", f"{found.tried} reads, the logits of our engine, bit for bit"))
    return Facts(facts)
