"""What a build will do and need, found out before anything is started or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.files import read_object
from vermilion.llm.architecture import (
    BLOCKS,
    Architecture,
    Quantization,
    architecture_of_config,
    architecture_of_gguf,
)
from vermilion.llm.gguf import GgufHeader, is_gguf, read_gguf
from vermilion.llm.operators import operators_of

Precision = Literal["int4", "int8", "fp16", "fp32"]
Graph = Literal["cpu", "dml"]
# The first is ours; the others are the builder's.
Algorithm = Literal["gptq", "default", "rtn", "k_quant", "k_quant_mixed"]

# Of a weight that `gptq` has rounded, where nobody says how many: those of SmolLM2-135M, and more
# than larger models need.
_EXPECTED_BITS = 5.5
# Peak of the builder 0.18, measured: 134.5 M parameters 1.9 GB, 1.07 B parameters 8.2 GB.
_MEMORY_BASE_BYTES = 1_200_000_000
_MEMORY_BYTES_A_PARAMETER = 6.6
# More than that with `gptq`, for its texts: 134.5 M parameters 2.38 GB.
_ROUNDING_BYTES = 300_000_000
_TOKENIZER_BYTES = 20_000_000
# `PIL.Image.Resampling` came with 9.1; transformers' image code, which its models import, uses it.
_LEAST_PILLOW = 10
_FLOAT_BYTES = {"fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class BuildRequest:
    """A model and how it is to be stored.

    `accuracy`: the least precision of activations in products with packed weights, ONNX Runtime's
    `accuracy_level`: 4 is int8 (fast), 1 float32, 0 whatever the kernel likes.
    `is_symmetric` None: `gptq` has zero points, the builder's algorithms have none.
    `calibration`: a text that `gptq` rounds for; None: one that the model writes. With
    `is_checked` the folder is held against its source on a text. `mean_bits`: of a weight that
    `gptq` rounds to 4 bits or 8, those in 8 chosen by what they lose; None: as many as it takes.
    """

    source: Path
    output: Path
    precision: Precision = "int4"
    graph: Graph = "cpu"
    block: int = 32
    accuracy: int = 4
    algorithm: Algorithm = "default"
    is_symmetric: bool | None = None
    prune_head: bool = False
    calibration: Path | None = None
    is_checked: bool = False
    mean_bits: float | None = None

    def __post_init__(self) -> None:
        for value, kind, name in (
            (self.precision, Precision, "--precision"),
            (self.graph, Graph, "--graph"),
            (self.algorithm, Algorithm, "--algorithm"),
        ):
            if value not in get_args(kind):
                raise OptionError(f"`{name} {value}`", hint=f"one of {', '.join(get_args(kind))}")
        if self.block not in BLOCKS:
            raise OptionError(
                f"`--block {self.block}`", hint=f"one of {', '.join(map(str, BLOCKS))}"
            )
        if self.algorithm == "gptq" and self.precision != "int4":
            raise OptionError("`--algorithm gptq` is for weights in 4 bits", hint="int4")
        if self.mean_bits is not None and self.algorithm != "gptq":
            raise OptionError("no other algorithm chooses bits", hint="`--algorithm gptq`")
        if self.mean_bits is not None and not 4 <= self.mean_bits <= 8:
            raise OptionError(f"`--bits {self.mean_bits:g}`", hint="4 to 8")
        if self.calibration is not None and self.algorithm != "gptq":
            raise OptionError("no other algorithm reads a text", hint="`--algorithm gptq`")
        if not 0 <= self.accuracy <= 4:
            raise OptionError(f"`--accuracy {self.accuracy}`", hint="0 to 4")
        if self.precision == "fp16" and self.graph == "cpu":
            raise OptionError(
                "ONNX Runtime's CPU provider cannot run the builder's FP16 graph",
                hint="`--precision fp32`, or `--graph dml` for a GPU or for AMD's hybrid recipe",
            )

    @property
    def most_bits(self) -> float | None:
        """Return how many bits a weight that `gptq` rounds may have on average, None for no bound.

        The programs that the recipe's graph is for know 4 bits alone.
        """
        return 4.0 if self.mean_bits is None and self.graph == "dml" else self.mean_bits

    @property
    def bits(self) -> float:
        """Return the bits that a weight of packed products has on average, as expected."""
        if self.algorithm == "gptq":
            return _EXPECTED_BITS if self.most_bits is None else self.most_bits
        return 4 if self.precision == "int4" else 8

    @property
    def is_packed(self) -> bool:
        """Say whether weights are stored as MatMulNBits has them."""
        return self.precision in ("int4", "int8")

    @property
    def has_zero_points(self) -> bool:
        """Say whether blocks have zero points."""
        if self.is_symmetric is None:
            return self.algorithm == "gptq"
        return not self.is_symmetric

    @property
    def is_built_symmetric(self) -> bool:
        """Say whether the builder's graph has no zero points; `gptq` adds its own."""
        return not self.has_zero_points or self.algorithm == "gptq"

    def builder_options(self) -> Mapping[str, str]:
        """Return the builder's `--extra_options`. Code from the model is never run."""
        options = {"hf_token": "false", "hf_remote": "false"}
        if self.is_packed:
            options |= {
                "block_size": str(self.block),
                "accuracy_level": str(self.accuracy),
                "is_symmetric": str(self.is_built_symmetric).lower(),
                "algo_config": "default" if self.algorithm == "gptq" else self.algorithm,
            }
        if self.is_packed and not self.is_built_symmetric:
            # With zero points, 0.18 writes an embedding shared with the head that does not load.
            options["shared_embeddings"] = "false"
        if self.prune_head:
            options["prune_lm_head"] = "true"
        return options


@dataclass(frozen=True)
class BuildPlan:
    """What a build needs. Sizes are estimates; `warnings` are told before it starts."""

    request: BuildRequest
    architecture: Architecture
    is_gguf: bool
    output_bytes: int
    disk_bytes: int
    memory_bytes: int
    warnings: tuple[str, ...]


def plan_build(request: BuildRequest) -> BuildPlan:
    """Return what a build would do.

    Raises: OptionError for a source or place that will not do; ModelError, UnsupportedError for a
    model that will not.
    """
    _check_place(request.output)
    from_gguf = request.source.is_file()
    if from_gguf:
        if not is_gguf(request.source):
            raise ModelError(
                "this file is no GGUF model",
                where=str(request.source),
                hint="give a `.gguf` file or the folder of a Hugging Face model",
            )
        header = read_gguf(request.source)
        architecture = architecture_of_gguf(header)
    else:
        _check_folder(request.source)
        config = request.source / "config.json"
        architecture, _ = architecture_of_config(config, is_for_building=True)
    if request.algorithm == "gptq" or request.is_checked:
        _check_read(request)
    size = _output_bytes(architecture, request)
    converted = 4 * architecture.parameters if from_gguf else 0
    memory = _MEMORY_BASE_BYTES + int(_MEMORY_BYTES_A_PARAMETER * architecture.parameters)
    memory += _ROUNDING_BYTES if request.algorithm == "gptq" else 0
    # The builder writes the float graph to its cache and the packed one to the folder.
    disk = 2 * size + converted
    warnings = _warnings(architecture, request)
    if from_gguf and request.is_packed:
        warnings += _rounded_again(header, request)
    return BuildPlan(request, architecture, from_gguf, size, disk, memory, warnings)


def _check_read(request: BuildRequest) -> None:
    """Raise UnsupportedError for a source that is not read here, whose floats are needed."""
    from vermilion.llm.source.open_source import find_source

    source = find_source(request.source)
    if source is None:
        raise UnsupportedError("this is no published model", where=str(request.source))
    if source.blueprint().mixture is not None and request.algorithm == "gptq":
        raise UnsupportedError(
            "mixtures of experts are not rounded so",
            where=str(request.source),
            hint="`--algorithm default`",
        )


def closer_rounding(request: BuildRequest) -> str:
    """Return a line on the option that would keep more of the model, nothing where none would."""
    if request.precision != "int4" or request.algorithm == "gptq":
        return ""
    try:
        _check_read(replace(request, algorithm="gptq"))
    except VermilionError:  # a source that is not read here, or not rounded so
        return ""
    return (
        "closer to its source, but a longer build and some weights in 8 bits: `--algorithm gptq`"
        " (SmolLM2-135M in blocks of 32: perplexity 2 % over the source's instead of 27 %)\n"
    )


def check_room(plan: BuildPlan, free_disk_bytes: int, free_memory_bytes: int) -> None:
    """Raise OptionError where the disk or the memory will not do."""
    rows = (
        ("disk", plan.disk_bytes, free_disk_bytes, "free some, or build on another disk"),
        ("memory", plan.memory_bytes, free_memory_bytes, "close other programs"),
    )
    for what, needed, free, hint in rows:
        if needed > free:
            raise OptionError(
                f"the build needs about {needed / 1e9:.1f} GB of {what}, {free / 1e9:.1f} GB are"
                " free",
                where=str(plan.request.source),
                hint=f"{hint}; `--anyway` starts it nevertheless",
            )


def check_packages(*, from_gguf: bool) -> None:
    """Raise UnsupportedError where a package that the build needs is not installed."""
    needed = ["onnxruntime_genai", "transformers", "torch"]
    needed += ["gguf", "accelerate"] if from_gguf else []
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        raise UnsupportedError(
            f"building needs {', '.join(absent)}",
            hint="pip install 'vermilion[llm]' 'torch>=2.6'",
        )
    if find_spec("PIL") is not None and _major(version("pillow")) < _LEAST_PILLOW:
        raise UnsupportedError(
            f"transformers does not import beside Pillow {version('pillow')}",
            hint="pip install 'pillow>=10', or uninstall it: nothing here needs it",
        )


def _major(written: str) -> int:
    return int(written.partition(".")[0])


def _check_place(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise OptionError(
            "the output folder is there already",
            where=str(output),
            hint="name another folder, or remove this one first",
        )
    if not output.absolute().parent.is_dir():
        raise OptionError("no such folder", where=str(output.absolute().parent), hint="make it")


def _check_folder(source: Path) -> None:
    if not source.is_dir():
        raise OptionError("no such file or folder", where=str(source), hint="check the path")
    if not (source / "config.json").is_file():
        built = (source / "genai_config.json").is_file()
        raise ModelError(
            "this folder is built already" if built else "this is no Hugging Face model",
            where=str(source),
            hint="a source has `config.json`, `*.safetensors` and a tokenizer",
        )
    for name in ("config.json", "tokenizer_config.json"):
        if (source / name).is_file() and "auto_map" in read_object(source / name):
            raise UnsupportedError(
                "the model brings its own Python code, which is not run",
                where=f"{source / name}, `auto_map`",
                hint="look for a version that transformers knows by itself; if it does know it,"
                " remove `auto_map`",
            )
    if not any(source.glob("*.safetensors")):
        pickled = any(source.glob("*.bin"))
        raise ModelError(
            "the weights are Python pickles, which can run code"
            if pickled
            else "the folder has no weights",
            where=str(source),
            hint="download the `*.safetensors` files",
        )
    if not any((source / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ModelError(
            "the folder has no tokenizer", where=str(source), hint="download `tokenizer.json`"
        )


def _output_bytes(architecture: Architecture, request: BuildRequest) -> int:
    if not request.is_packed:
        return architecture.parameters * _FLOAT_BYTES[request.precision] + _TOKENIZER_BYTES
    scale = 4 if request.graph == "cpu" else 2
    bits = 4 if request.precision == "int4" else 8
    weights = Quantization(bits, request.block, not request.has_zero_points, scale)
    total = _TOKENIZER_BYTES
    for one in operators_of(architecture, weights, request.graph):
        if one.op_type == "MatMulNBits":
            depth, columns = one.shape["K"], one.shape["N"]
            total += one.count * weights.stored_bytes(depth, columns)
            total += int(one.count * depth * columns * (request.bits - bits) / 8)
    shares = architecture.has_tied_embeddings and bits == 4 and request.is_built_symmetric
    return total + (0 if shares else architecture.vocabulary * architecture.hidden * scale)


def _rounded_again(header: GgufHeader, request: BuildRequest) -> tuple[str, ...]:
    """Say that weights of few bits are rounded a second time."""
    types = {tensor.type for tensor in header.tensors if len(tensor.shape) > 1}
    few = sorted(types - {"F32", "F16", "BF16"})
    if not few:
        return ()
    return (
        f"the file's weights are {', '.join(few)}: they are rounded a second time, to"
        f" {request.precision} in blocks of {request.block}, and lose more than they had lost"
        f"{_again(request)};"
        f" `vermilion llm generate {request.source}` reads them as they are",
    )


def _again(request: BuildRequest) -> str:
    """Return what that came to for one model in 4 bits, on the text of `llm perplexity`."""
    if request.precision != "int4":
        return ""
    found = "28.8" if request.algorithm == "gptq" else "35.8"
    return f" (SmolLM2-135M, perplexity: 28.2 as they are, {found} rounded again)"


def _warnings(architecture: Architecture, request: BuildRequest) -> tuple[str, ...]:
    sides = {architecture.hidden, architecture.intermediate}
    uneven = sorted(side for side in sides if side % request.block)
    if not (request.is_packed and uneven):
        return ()
    return (
        f"blocks of {request.block} do not divide {', '.join(map(str, uneven))}: rows are padded,"
        " and larger blocks cost accuracy (SmolLM2-135M, perplexity: 41.2 with 32, 46.4 with 64,"
        " 55.1 with 128; 33.4 in float)",
    )


def plan_as_json(plan: BuildPlan) -> dict[str, object]:
    """Return the keys that `llm build --json` has of a plan."""
    return {
        "source": plan.request.source,
        "output": plan.request.output,
        "precision": plan.request.precision,
        "graph": plan.request.graph,
        "builder_options": dict(plan.request.builder_options()),
        "parameters": plan.architecture.parameters,
        "expected_output_bytes": plan.output_bytes,
        "disk_bytes": plan.disk_bytes,
        "memory_bytes": plan.memory_bytes,
    }
