"""`genai_config.json`: the one file that says how onnxruntime-genai runs a folder.

A key that is not among those here stops onnxruntime-genai at load. Source:
microsoft/onnxruntime-genai, `src/config.h` and `src/config.cpp` (main, 2026-08), which 0.18 agrees
with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from vermilion.errors import ModelError, OptionError
from vermilion.files import read_object
from vermilion.hardware.options.option import Option, OptionTable

if TYPE_CHECKING:
    from vermilion.llm.source.published import Source

TOP_KEYS = frozenset(("model", "search", "engine", "speculative"))

MODEL_KEYS = frozenset(
    (
        *("type", "tokenizer_dir", "vocab_size", "context_length"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id"),
        *("decoder_start_token_id", "bot_token_id", "eot_token_id", "bor_token_id"),
        *("eor_token_id", "image_token_id", "audio_token_id", "video_token_id"),
        *("vision_start_token_id", "encoder", "decoder", "draft", "embedding", "vision"),
        *("speech", "joiner", "vad", "mtp"),
    )
)

DECODER_KEYS = frozenset(
    (
        *("filename", "hidden_size", "num_attention_heads", "num_hidden_layers"),
        *("num_key_value_heads", "head_size", "layer_types", "conv_cache_size"),
        *("shared_initializers", "session_options", "run_options", "sliding_window"),
        *("inputs", "outputs", "pipeline"),
    )
)

STAGE_KEYS = frozenset(
    (
        *("filename", "session_options", "run_options", "inputs", "outputs"),
        *("output_names_forwarder", "run_on_prompt", "run_on_token_gen", "is_lm_head"),
        *("inherit_session_options", "reset_session_idx"),
    )
)

SEARCH_KEYS = frozenset(
    (
        *("do_sample", "min_length", "max_length", "batch_size", "num_beams"),
        *("num_return_sequences", "repetition_penalty", "top_k", "top_p", "temperature"),
        *("early_stopping", "no_repeat_ngram_size", "diversity_penalty", "length_penalty"),
        *("past_present_share_buffer", "random_seed", "chunk_size", "blank_penalty"),
    )
)

# Of session options, those that are not text. Every other key must be text: it becomes an entry
# of the session's own configuration.
SESSION_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "enable_cpu_mem_arena": bool,
    "enable_mem_pattern": bool,
    "inter_op_num_threads": int,
    "intra_op_num_threads": int,
    "log_severity_level": int,
    "log_verbosity_level": int,
    "provider_options": list,
}

OLD_KEYS = frozenset(("amd_options", "config_entries", "custom_allocator"))
"""Session options of AMD's fork up to Ryzen AI 1.6; public builds reject the first two."""

PROVIDERS: Mapping[str, str] = {
    "AMDGPU": "AMDGPUExecutionProvider",
    "AMDGPUExecutionProvider": "AMDGPUExecutionProvider",
    "CPU": "CPUExecutionProvider",
    "DML": "DmlExecutionProvider",
    "MIGraphX": "MIGraphXExecutionProvider",
    "MIGraphXExecutionProvider": "MIGraphXExecutionProvider",
    "NvTensorRtRtx": "NvTensorRTRTXExecutionProvider",
    "OpenVINO": "OpenVINOExecutionProvider",
    "QNN": "QNNExecutionProvider",
    "RyzenAI": "RyzenAILightExecutionProvider",
    "VitisAI": "VitisAIExecutionProvider",
    "WebGPU": "WebGpuExecutionProvider",
    "XNNPACK": "XnnpackExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
}
"""The names that an entry may have; any other must be a plugin library that was registered."""

RYZENAI = OptionTable(
    provider="RyzenAILightExecutionProvider",
    build="1.7",
    title="Ryzen AI provider of onnxruntime-genai, from release 1.7",
    source="https://ryzenai.docs.amd.com, hybrid_oga.html; amd/Quark, contrib/onnx_utils/docs",
    options=(
        Option("external_data_file", "path", "the packed weights' header (`model_jit.pb.bin`)"),
        Option("hybrid_opt_free_after_prefill", "flag", "free the NPU's weights after the prompt"),
        Option("hybrid_opt_max_seq_length", "integer", "longest sequence", default="3072"),
        Option("hybrid_opt_chunk_context", "flag", "prompts over 4096 tokens in chunks"),
        Option("hybrid_opt_token_backend", "choice", "what decodes", choices=("gpu", "npu")),
        Option("hybrid_opt_gpu_jit", "integer", "how the GPU's weights are made, 0 to 5"),
        Option("hybrid_opt_dynamic_jit_factor", "number", "how much of them at a time"),
        Option("hybrid_opt_enable_dynamic_dpm", "flag", "let the NPU's clock follow the load"),
        Option("hybrid_opt_continue_on_exception", "flag", "tell of every missing operator"),
        Option("hybrid_opt_npu_read_ahead", "integer", "layers read ahead", default="3"),
        Option("hybrid_opt_enable_npu_preemption", "flag", "let others in between"),
        Option("hybrid_opt_enable_npu_qos", "flag", "tell the driver what is urgent"),
        Option("hybrid_opt_disable_npu_ops", "flag", "keep off the NPU"),
        Option("hybrid_opt_npu_pdi_name", "text", "which configuration of the NPU"),
        Option("hybrid_opt_enable_npu_lora", "flag", "adapters on the NPU"),
        Option("hybrid_opt_init_prompt_size", "integer", "prompt that is prepared for"),
        Option("hybrid_opt_qmoe_dynamic_experts", "flag", "experts loaded when wanted"),
        Option("hybrid_opt_qmoe_num_dynamic_layers", "integer", "in how many layers"),
        Option("hybrid_opt_embedding_mmap", "flag", "map the embedding's file"),
        Option("custom_allocator", "text", "whose memory (`ryzen_mm`)"),
    ),
)
"""What the entry `RyzenAI` takes."""


NAME = "genai_config.json"


@dataclass(frozen=True)
class GenaiConfig:
    """A folder's configuration, as written. The folder may be moved, so names are relative.

    `source` is the published model that there is instead of such a folder: `folder` is then its
    file or folder, and `data` what follows from it.
    """

    folder: Path
    data: Mapping[str, object]
    source: Source | None = None

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.folder if self.source is not None else self.folder / NAME)

    @property
    def model(self) -> Mapping[str, object]:
        """The object `model`."""
        return _object(self.data, "model", self.where)

    @property
    def decoder(self) -> Mapping[str, object]:
        """The object `model.decoder`."""
        return _object(self.model, "decoder", self.where)

    @property
    def type(self) -> str:
        """The kind of model: `llama`, `phi3`, `decoder-pipeline` …."""
        return str(self.model.get("type", ""))

    def stages(self) -> tuple[tuple[str, Mapping[str, object]], ...]:
        """Return the sessions that are opened, by name: the pipeline's, or the one decoder."""
        pipeline = self.decoder.get("pipeline")
        if not isinstance(pipeline, list):
            return (("decoder", self.decoder),)
        return tuple(
            (str(name), cast("Mapping[str, object]", stage))
            for entry in pipeline
            if isinstance(entry, dict)
            for name, stage in entry.items()
            if isinstance(stage, dict)
        )

    def model_files(self) -> tuple[str, ...]:
        """Return the ONNX files, relative to the folder.

        Raises: ModelError if there is none, or one leads out of the folder.
        """
        files = tuple(
            str(stage["filename"])
            for _, stage in self.stages()
            if isinstance(stage.get("filename"), str)
        )
        if not files:
            raise ModelError(
                "the configuration names no model: `model.decoder.filename` is missing",
                where=self.where,
                hint="build the folder again with `vermilion llm build`",
            )
        for file in files:
            if leads_out(file):
                raise ModelError(f"`{file}` leads out of the folder", where=self.where)
        return files

    def measure(self, name: str) -> int:
        """Return a whole number above zero of the decoder.

        Raises: ModelError if it is none.
        """
        return _positive(self.decoder.get(name), f"model.decoder.{name}", self.where)

    def head_size(self) -> int:
        """Return the size of an attention head."""
        return self.measure("head_size")

    def context_length(self) -> int:
        """Return the most tokens that the model was made for."""
        value = self.model.get("context_length")
        return _positive(value, "model.context_length", self.where)

    def cache_bytes(self, tokens: int, element_bytes: int = 4) -> int:
        """Return the size of the cache of keys and values for so many tokens."""
        heads, size = self.measure("num_key_value_heads"), self.head_size()
        return 2 * self.measure("num_hidden_layers") * heads * size * tokens * element_bytes


def read_genai_config(folder: Path) -> GenaiConfig:
    """Read a folder's configuration; what it says is checked by whoever uses it.

    Raises: OptionError for a folder that has none; ModelError if it is damaged.
    """
    if folder.name == NAME and folder.is_file():
        folder = folder.parent
    if folder.is_file():
        raise OptionError(
            "this is a file, and a folder of onnxruntime-genai is wanted",
            where=str(folder),
            hint=f"build one of it: `vermilion llm build {folder} -o FOLDER`"
            if folder.suffix == ".gguf"
            else f"give the folder that has `{NAME}`",
        )
    if not folder.is_dir():
        raise OptionError("no such folder", where=str(folder), hint="check the path")
    if not (folder / NAME).is_file():
        raise OptionError(
            f"this is no folder of onnxruntime-genai: it has no `{NAME}`",
            where=str(folder),
            hint=_other_folder(folder),
        )
    return GenaiConfig(folder, read_object(folder / NAME))


def session_options(config: GenaiConfig) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield every object of session options, with the words that say where it stands."""
    own = config.decoder.get("session_options")
    if isinstance(own, dict):
        yield "model.decoder.session_options", own
    if isinstance(config.decoder.get("pipeline"), list):
        for name, stage in config.stages():
            options = stage.get("session_options")
            if isinstance(options, dict):
                yield f"model.decoder.pipeline.{name}.session_options", options


def leads_out(file: str) -> bool:
    """Say whether a relative name is none, or climbs out of its folder."""
    name = PurePosixPath(file.replace("\\", "/"))
    return name.is_absolute() or ".." in name.parts or ":" in file or not name.parts


def is_there(folder: Path, file: str) -> bool:
    """Say whether a file is in the folder; a name that no file can have is not."""
    try:
        return (folder / file).is_file()
    except (OSError, ValueError):
        return False


def _other_folder(folder: Path) -> str:
    if (folder / "config.json").is_file():
        return f"this is a Hugging Face model: `vermilion llm build {folder} -o DIR` first"
    return "build one with `vermilion llm build`"


def _object(data: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ModelError(
            f"the configuration has no `{key}`",
            where=where,
            hint="it was not written by onnxruntime-genai's model builder, or is damaged",
        )
    return cast("Mapping[str, object]", value)


def _positive(value: object, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ModelError(
            f"`{name}` is {value!r}, not a whole number above zero",
            where=where,
            hint="build the folder again",
        )
    return value
