"""What `genai_config.json` may hold. A key that is not here stops onnxruntime-genai at load.

Source: microsoft/onnxruntime-genai, `src/config.h` and `src/config.cpp` (main, 2026-08), which 0.18
agrees with.
"""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.hardware.options.option import Option, OptionTable

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
