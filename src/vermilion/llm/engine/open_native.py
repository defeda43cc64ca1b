"""A folder → its decoder on our own code: from its image where there is one, else made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from vermilion.codegen.isa import Isa, isa_of
from vermilion.cores import usable_cores
from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.targets.find import resolve_cpu
from vermilion.hardware.targets.target import Target
from vermilion.llm.engine.cached_image import Opening, kept_image, known_image
from vermilion.llm.engine.decoder import NativeDecoder
from vermilion.llm.engine.image import Image, Prefill
from vermilion.llm.genai_config import GenaiConfig, read_genai_config
from vermilion.store.cache_dir import default_root

# What every AMD processor since Zen 1 has. Bytes are multiplied by VNNI where that is there, too.
_NEEDED = frozenset({"avx2", "fma", "f16c"})

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.llm.engine.build_image import ImageDraft
    from vermilion.llm.source.published import Source


def open_native_decoder(
    folder: Path,
    *,
    threads: int = 0,
    prefill: Prefill | None = None,
    cache: Path | None = None,
    opening: Opening | None = None,
) -> NativeDecoder:
    """Open the decoder of an OGA folder on our own machine code.

    `prefill` is in which numbers prompts are multiplied, None: bfloat16 where the processor has it,
    else 8 bits; with `int8` that is products whose weights
    are codes, and bfloat16 for others. `cache` keeps the machine code; None is the user's own.
    With `opening`, packed weights are kept as well, and shared with all who open the same model.

    Raises: UnsupportedError for a graph or a processor that it cannot take, with the reason.
    """
    isa = this_isa()
    prefill = prefill or chosen_prefill(isa, has_few_bits=True)
    if prefill not in get_args(Prefill):
        raise OptionError(
            f"a prompt cannot be computed in `{prefill}`",
            hint=f"there are {', '.join(get_args(Prefill))}",
        )
    check_prefill(prefill, isa)
    config = read_genai_config(folder)
    threads = threads or usable_cores()
    image = _image(config, isa, prefill, cache or default_root(), opening, threads)
    return NativeDecoder(image, config.context_length(), isa, threads)


def open_source_decoder(
    source: Source,
    context: int,
    *,
    threads: int = 0,
    prefill: Prefill | Literal["auto"] = "auto",
    cache: Path | None = None,
    opening: Opening | None = None,
) -> NativeDecoder:
    """Open the decoder of a published model on our own machine code; see `open_native_decoder`."""
    from vermilion.llm.engine.build_image import draft_image
    from vermilion.llm.source.open_source import has_few_bits

    isa = this_isa()
    description = source.describe()
    if prefill == "auto":
        prefill = chosen_prefill(isa, has_few_bits=has_few_bits(description))
    check_prefill(prefill, isa)
    threads, root = threads or usable_cores(), cache or default_root()
    number = prefill

    def draft() -> ImageDraft:
        return draft_image(description, isa, number, root)

    if opening is None:
        image = draft().in_memory(threads)
    else:
        image = kept_image(opening, source.files(), prefill, draft, threads)
    return NativeDecoder(image, context, isa, threads)


def open_known_decoder(
    config: GenaiConfig, *, threads: int, prefill: str, cache: Path | None
) -> tuple[NativeDecoder | None, Opening]:
    """Open a folder that was opened before and is as it was, without reading its model.

    Give None for another, and what `open_native_decoder` is to keep an image for.
    Raises: UnsupportedError for a processor that it cannot take.
    """
    isa = this_isa()
    opening = Opening(config.folder, config.data, prefill, isa, cache or default_root())
    image = known_image(opening)
    if image is None:
        return None, opening
    return NativeDecoder(image, config.context_length(), isa, threads or usable_cores()), opening


def this_isa() -> Isa:
    """Return what this processor has.

    Raises: UnsupportedError where the decoder's kernels need more.
    """
    return isa_for(resolve_cpu())


def isa_for(target: Target) -> Isa:
    """Return what a processor has; see `this_isa`."""
    if missing := sorted(_NEEDED - target.features):
        raise UnsupportedError(
            f"the native decoder needs AVX2, FMA and F16C: {', '.join(missing)} not there",
            where=f"processor `{target.name}`",
            hint="it runs on ONNX Runtime",
        )
    return isa_of(target)


def check_prefill(prefill: Prefill, isa: Isa) -> None:
    """Raise UnsupportedError where the processor cannot multiply in these numbers."""
    if prefill in ("bf16", "bfp16") and not isa.has_bf16:
        raise UnsupportedError(
            f"a product in {prefill} needs AVX-512 with BF16 (Zen 4 or later)",
            where=f"processor `{isa.llvm_cpu}`",
            hint="`--prefill int8` or `--prefill fp32`",
        )


def chosen_prefill(isa: Isa, *, has_few_bits: bool) -> Prefill:
    """Return in what prompts are multiplied where nobody says it.

    Floats stay floats; weights of few bits lose more than a product in bfloat16 does, or, where a
    processor has none, one in 8 bits.
    """
    if not has_few_bits:
        return "fp32"
    return "bf16" if isa.has_bf16 else "int8"


def _image(
    config: GenaiConfig,
    isa: Isa,
    prefill: Prefill,
    cache: Path,
    opening: Opening | None,
    threads: int,
) -> Image:
    # Graphs and compilers are loaded by who needs them; an image needs none.
    from vermilion.ir.load import load_model
    from vermilion.llm.engine.build_image import draft_image
    from vermilion.llm.engine.read_graph import read_graph

    path = only_model_of(config)
    model = load_model(path)

    def draft() -> ImageDraft:
        return draft_image(read_graph(model), isa, prefill, cache)

    if opening is None:
        return draft().in_memory(threads)
    return kept_image(opening, [path, *_stored_beside(model)], prefill, draft, threads)


def only_model_of(config: GenaiConfig) -> Path:
    """Return the one graph of a folder.

    Raises: UnsupportedError where there are several.
    """
    if len(config.model_files()) != 1:
        raise UnsupportedError(
            "the native decoder takes folders of one model",
            where=str(config.folder),
            hint="it runs on ONNX Runtime",
        )
    return config.folder / config.model_files()[0]


def _stored_beside(model: ir.Model) -> list[Path]:
    """Return the files that a model's weights lie in, beside its own."""
    import onnx_ir as ir

    values = model.graph.initializers.values()
    tensors = [value.const_value for value in values]
    return sorted({Path(one.path) for one in tensors if isinstance(one, ir.ExternalTensor)})
