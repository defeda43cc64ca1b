"""A language model → a library for C programs, a `.rai` for the C library, or a folder.

Compiled for each target, written, and tried against our engine where this processor is one of them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from vermilion.ahead.decoder import DecoderFacts
from vermilion.ahead.interface import checked_name
from vermilion.ahead.link import SUFFIXES, Library
from vermilion.cores import usable_cores
from vermilion.errors import OptionError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.llm.ahead.genai_folder import BUNDLE, write_genai_folder
from vermilion.llm.ahead.parts import decoder_parts
from vermilion.llm.ahead.tried import (
    capacity_of,
    file_reads,
    linked_reads,
    runs_here,
    tried,
)
from vermilion.llm.ahead.write import (
    TargetDecoder,
    write_decoder_bundle,
    write_decoder_library,
)
from vermilion.llm.engine.build_image import draft_image
from vermilion.llm.engine.description import Description
from vermilion.llm.engine.image import Prefill
from vermilion.llm.engine.open_native import (
    check_prefill,
    chosen_prefill,
    isa_for,
    only_model_of,
)
from vermilion.llm.genai_config import GenaiConfig
from vermilion.llm.open_model import ends_of, read_model_config
from vermilion.progress import Progress, no_progress
from vermilion.store.cache_dir import default_root
from vermilion.store.ed25519 import SigningKey


@dataclass(frozen=True)
class CompiledDecoder:
    """What was written. `tried` reads of tokens gave the logits of our engine, bit for bit."""

    path: Path
    targets: tuple[str, ...]
    vocabulary: int
    context: int
    size_bytes: int
    tried: int
    library: Library | None = None

    def as_json(self) -> dict[str, object]:
        """Return the keys of `llm compile --json`."""
        return {
            "output": str(self.path),
            "targets": list(self.targets),
            "vocabulary": self.vocabulary,
            "context": self.context,
            "bytes": self.size_bytes,
            "tried": self.tried,
            "library": self.library and self.library.as_json(),
        }


def compile_decoder(
    model: Path,
    output: Path,
    *,
    targets: str = "cpu",
    prefill: str = "auto",
    context: int = 0,
    key: SigningKey | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> CompiledDecoder:
    """Compile a GGUF file, a Hugging Face folder or one of onnxruntime-genai.

    `output` ends in `.so`, `.a` or `.o`, or in `.rai`; without an ending it is a new folder for
    onnxruntime-genai. `key` signs the last two. `context` is the longest sequence, 0: as long as
    the model's.

    Raises: OptionError for what it is not to be; UnsupportedError for a model or processor that our
    engine does not take; DeviceError where there is no C compiler.
    """
    _check_output(output, targets, key)
    config = read_model_config(model, cache or default_root())
    length = config.context_length()
    if not 0 <= context <= length:
        raise OptionError(
            f"a context of {context} tokens of a model of {length}",
            where="--context",
            hint=f"ask for 1 to {length}, or leave it out",
        )
    description = description_of(config)
    made = []
    names = list(dict.fromkeys(filter(None, map(str.strip, targets.split(",")))))
    for number, name in enumerate(names):
        progress(f"compiling for {name}", number, len(names) + 1)
        target = _processor(find_target(name))
        numbers = _prefill(prefill, config, description, target)
        made.append(for_target(description, target, numbers, context or length, cache))
    made.sort(key=lambda one: -len(one.target.features))
    facts = DecoderFacts(
        checked_name(output.stem),
        made[0].image.facts.vocabulary,
        json.loads(made[0].parts.table)["facts"]["context"],
        ends_of(config).ends,
    )
    progress("writing", len(names), len(names) + 1)
    output.parent.mkdir(parents=True, exist_ok=True)
    linked = None
    if not output.suffix:
        write_genai_folder(made[0], config, facts.context, output, key)
        count = _try_file(made, output / BUNDLE, facts)
    elif output.suffix == ".rai":
        write_decoder_bundle(made[0], output, key)
        count = _try_file(made, output, facts)
    else:
        linked = write_decoder_library(made, output, facts)
        count = _try_library(made, output, facts)
    files = [output] if output.is_file() else output.iterdir()
    return CompiledDecoder(
        output, tuple(one.target.name for one in made), facts.vocabulary, facts.context,
        sum(file.stat().st_size for file in files), count, linked,
    )  # fmt: skip


def _check_output(output: Path, targets: str, key: SigningKey | None) -> None:
    if output.suffix not in (*SUFFIXES, ".rai", ""):
        raise OptionError(
            f"`{output}` is neither a library nor a `.rai`",
            where="--output",
            hint="name it `NAME.so`, `NAME.a` or `NAME.o`, `NAME.rai` for the C library, or a new "
            "folder for onnxruntime-genai, without an ending",
        )
    names = [name for name in targets.split(",") if name.strip()]
    if not names or (output.suffix not in SUFFIXES and len(names) > 1):
        raise OptionError(
            f"`--target {targets}`: a `.rai` holds code for one target",
            where="--target",
            hint="name one, or write a library: `-o NAME.so --target zen4,zen5`",
        )
    if key is not None and output.suffix in SUFFIXES:
        raise OptionError(
            "a library is not signed: who links it runs it",
            where="--sign",
            hint="leave it out, or write a `.rai`",
        )


def description_of(config: GenaiConfig) -> Description:
    """Return what a model computes, over its weights.

    Raises: ModelError for a damaged one; UnsupportedError for what our engine does not compute.
    """
    if config.source is not None:
        return config.source.describe()
    from vermilion.ir.load import load_model
    from vermilion.llm.engine.read_graph import read_graph

    return read_graph(load_model(only_model_of(config)))


def _prefill(name: str, config: GenaiConfig, description: Description, target: Target) -> Prefill:
    """Return in which numbers prompts are multiplied, as our engine chooses them."""
    from vermilion.llm.source.open_source import has_few_bits

    if name == "auto":
        few_bits = config.source is None or has_few_bits(description)
        return chosen_prefill(isa_for(target), has_few_bits=few_bits)
    if name not in get_args(Prefill):
        raise OptionError(
            f"a prompt cannot be computed in `{name}`",
            where="--prefill",
            hint=f"there are auto, {', '.join(get_args(Prefill))}",
        )
    return cast("Prefill", name)


def _processor(target: Target) -> Target:
    """Return the target. Raises: OptionError where it is no processor."""
    if target.kind != "cpu":
        raise OptionError(
            f"a decoder is compiled for processors, and `{target.name}` is none",
            where="--target",
            hint="`--target zen4`, or several: `--target zen4,zen5`",
        )
    return target


def for_target(
    description: Description, target: Target, prefill: Prefill, context: int, cache: Path | None
) -> TargetDecoder:
    """Compile a decoder for a target and pack its weights.

    Raises: UnsupportedError for a processor that it cannot run on.
    """
    isa = isa_for(target)
    check_prefill(prefill, isa)
    draft = draft_image(description, isa, prefill, cache or default_root())
    image = draft.in_memory(usable_cores())
    return TargetDecoder(target, image, decoder_parts(image, context))


# Trying ------------------------------------------------------------------------------------------


def _try_file(made: Sequence[TargetDecoder], file: Path, facts: DecoderFacts) -> int:
    mine = runs_here(made)
    if mine is None:
        return 0
    with file_reads(file, capacity_of(facts.context)) as reader:
        return tried(mine, facts.context, reader)


def _try_library(made: Sequence[TargetDecoder], output: Path, facts: DecoderFacts) -> int:
    """Try a library; one that is not shared is linked once more for it."""
    mine = runs_here(made)
    if mine is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="vermilion-") as folder:
        shared = Path(folder) / f"{facts.name}.so"
        if output.suffix == ".so":
            # A copy: whatever of this name the process has open already is another file.
            shutil.copy(output, shared)
        else:
            write_decoder_library(made, shared, facts)
        capacity = capacity_of(facts.context)
        with linked_reads(shared, facts.name, facts.vocabulary, capacity) as reader:
            return tried(mine, facts.context, reader)
