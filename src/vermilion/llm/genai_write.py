"""Writing provider entries into `genai_config.json`, in the spelling that a build reads."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vermilion.errors import OptionError
from vermilion.files import aside_of
from vermilion.hardware.options.gpu import AMDGPU, BUILT_IN, MIGRAPHX, PLUGIN, gpu_table
from vermilion.hardware.options.gpu_rules import plugin_name
from vermilion.llm.genai_config import NAME, OLD_KEYS, GenaiConfig

Provider = Literal["cpu", "migraphx", "amdgpu", "ryzenai"]
Build = Literal["built-in", "plugin"]
Era = Literal["1.6", "1.7"]

ARENAS = ("kNextPowerOfTwo", "kSameAsRequested")
_DEFAULT_LENGTH = 4096
_CHUNK_TOKENS = 2048


@dataclass(frozen=True)
class ProviderRequest:
    """Which provider an OGA folder is to run on, and how.

    `build`: the MIGraphX provider built into ONNX Runtime, or the plugin library; their options
    are spelt differently. `era`: AMD's keys up to Ryzen AI 1.6, or those from 1.7 on.
    """

    provider: Provider
    build: Build = "built-in"
    era: Era = "1.7"
    device_id: int = 0
    fp16: bool = False
    exhaustive_tune: bool = False
    cache_dir: str = ""
    max_length: int = 0  # of a sequence on RyzenAI; 0: 4096, or the context where that is less
    stage: str = ""  # of a pipeline; empty: every session
    int8: bool = False
    calibration_table: str = ""  # ONNX Runtime's, or MIGraphX' own with `native_table`
    native_table: bool = False
    memory_limit_bytes: int = 0  # of ONNX Runtime's arena; 0: none
    arena: str = ""  # how it grows

    def __post_init__(self) -> None:
        for value, kind, name in (
            (self.provider, Provider, "--provider"),
            (self.build, Build, "--build"),
            (self.era, Era, "--era"),
        ):
            if value not in get_args(kind):
                raise OptionError(f"`{name} {value}`", hint=f"one of {', '.join(get_args(kind))}")
        if self.device_id < 0 or self.max_length < 0:
            raise OptionError("a device and a length are numbers of zero or more")
        is_gpu = self.provider in ("migraphx", "amdgpu")
        if not is_gpu and (self.fp16 or self.exhaustive_tune or self.cache_dir or self.device_id):
            raise OptionError(
                f"`{self.provider}` has no device number, FP16, tuning or cache folder",
                hint="these are for `migraphx` and `amdgpu`",
            )
        if self.provider == "amdgpu" and (self.fp16 or self.int8):
            raise OptionError(
                "the AMDGPU provider has no FP16 or INT8 switch: it takes the model's numbers",
                hint="build the model in FP16 or INT8, or use `--provider migraphx`",
            )
        self._check_int8()
        self._check_memory()

    def _check_int8(self) -> None:
        if self.int8 and self.provider != "migraphx":
            raise OptionError(f"`{self.provider}` has no INT8 switch", hint="`--provider migraphx`")
        if self.int8 and not self.calibration_table:
            raise OptionError(
                "MIGraphX computes in INT8 with a calibration table only",
                hint="name it with `--calibration-table FILE`; ONNX Runtime's quantization tools "
                "write one (`write_calibration_table`)",
            )
        if (self.calibration_table or self.native_table) and not self.int8:
            raise OptionError("a calibration table is for INT8", hint="add `--int8`")

    def _check_memory(self) -> None:
        if not (self.memory_limit_bytes or self.arena):
            return
        if self.memory_limit_bytes < 0 or self.arena not in ("", *ARENAS):
            raise OptionError(
                f"`--mem-limit {self.memory_limit_bytes}` or `--arena {self.arena}` is wrong",
                hint=f"a number of bytes; one of {', '.join(ARENAS)}",
            )
        if self.provider != "migraphx" or self.build != BUILT_IN:
            raise OptionError(
                "only the MIGraphX provider built into ONNX Runtime takes a memory limit",
                hint="`--provider migraphx --build built-in`; a smaller batch or length needs less",
            )


def with_provider(config: GenaiConfig, request: ProviderRequest) -> GenaiConfig:
    """Return the configuration with the entries of one provider; nothing is written.

    Raises: OptionError for a stage that the folder does not have.
    """
    data: dict[str, Any] = copy.deepcopy(dict(config.data))
    changed = GenaiConfig(config.folder, data)
    stages = dict(changed.stages())
    if request.stage and request.stage not in stages:
        raise OptionError(
            f"the folder has no stage `{request.stage}`", hint=f"it has {', '.join(stages)}"
        )
    wanted = [request.stage] if request.stage else list(stages)
    for name in wanted:
        stage: Any = stages[name]
        options = stage.get("session_options")
        kept = options if isinstance(options, dict) else {}
        stage["session_options"] = _session(kept, config, request)
    if request.provider == "ryzenai" and _length(config, request) > _DEFAULT_LENGTH:
        search = data.get("search")
        data["search"] = {
            **(search if isinstance(search, dict) else {}),
            "chunk_size": _CHUNK_TOKENS,
        }
    return changed


def write_genai_config(config: GenaiConfig) -> None:
    """Write the configuration beside its place, then rename it there.

    Raises: OptionError where the folder cannot be written.
    """
    text = json.dumps(config.data, indent=4, ensure_ascii=False) + "\n"
    try:
        with aside_of(config.folder / NAME) as new:
            new.write_text(text, encoding="utf-8")
            new.replace(config.folder / NAME)
    except OSError as error:
        raise OptionError(
            f"the configuration cannot be written: {error.strerror or error}", where=config.where
        ) from error


def provider_entries(
    config: GenaiConfig, request: ProviderRequest
) -> list[dict[str, dict[str, str]]]:
    """Return what stands under `provider_options`; the CPU needs no entry."""
    match request.provider:
        case "cpu":
            return []
        case "migraphx":
            name = "MIGraphX" if request.build == BUILT_IN else MIGRAPHX
            return [{name: _gpu_options(request, request.build, MIGRAPHX)}]
        case "amdgpu":
            return [{"AMDGPU": _gpu_options(request, PLUGIN, AMDGPU)}]
        case "ryzenai":
            return [{"RyzenAI": _ryzenai_options(config, request)}]


def _gpu_options(request: ProviderRequest, build: str, provider: str) -> dict[str, str]:
    """Return the options by the built-in provider's names, or what the plugin calls them."""
    wanted = {
        "device_id": str(request.device_id),
        "migraphx_fp16_enable": "1" if request.fp16 else "",
        "migraphx_int8_enable": "1" if request.int8 else "",
        "migraphx_int8_calibration_table_name": request.calibration_table,
        "migraphx_int8_use_native_calibration_table": "1" if request.native_table else "",
        "migraphx_exhaustive_tune": "1" if request.exhaustive_tune else "",
        "migraphx_mem_limit": str(request.memory_limit_bytes or ""),
        "migraphx_arena_extend_strategy": request.arena,
        "migraphx_model_cache_dir": request.cache_dir,
    }
    named = {
        (plugin_name(name) if build == PLUGIN else name): value
        for name, value in wanted.items()
        if value
    }
    table = gpu_table(provider, build)
    assert table is not None, f"{provider} has a table"
    unknown = [name for name in named if table.find(name) is None]
    assert not unknown, f"{table.title} lacks {unknown}"
    return named


def _session(
    options: dict[str, Any], config: GenaiConfig, request: ProviderRequest
) -> dict[str, Any]:
    """Return session options without what other eras and providers had written into them."""
    kept = {
        key: value
        for key, value in options.items()
        if key not in (*OLD_KEYS, "provider_options", "external_data_file", "custom_ops_library")
    }
    if request.provider != "ryzenai" or request.era == "1.7":
        return {**kept, "provider_options": provider_entries(config, request)}
    length = str(_length(config, request))
    return {
        **kept,
        "custom_ops_library": "onnx_custom_ops.dll",
        "custom_allocator": "shared_d3d_xrt",
        "external_data_file": _external(config),
        "config_entries": {
            "hybrid_opt_token_backend": "gpu",
            "hybrid_opt_max_seq_length": length,
            "max_length_for_kv_cache": length,
        },
        "provider_options": [],
    }


def _ryzenai_options(config: GenaiConfig, request: ProviderRequest) -> dict[str, str]:
    length = _length(config, request)
    chunks = {"hybrid_opt_chunk_context": "1"} if length > _DEFAULT_LENGTH else {}
    return {
        "external_data_file": _external(config),
        "hybrid_opt_free_after_prefill": "1",
        "hybrid_opt_max_seq_length": str(length),
        **chunks,
    }


def _length(config: GenaiConfig, request: ProviderRequest) -> int:
    context = config.context_length()
    if request.max_length > context:
        raise OptionError(
            f"{request.max_length:,} tokens are over the model's context of {context:,}",
            where=config.where,
        )
    return request.max_length or min(_DEFAULT_LENGTH, context)


def _external(config: GenaiConfig) -> str:
    """Return the packed weights' header that belongs to the model: `model_jit.pb.bin`."""
    file = Path(config.model_files()[0])
    return f"{file.stem}.pb.bin"


def changed_options(before: GenaiConfig, after: GenaiConfig) -> Mapping[str, object]:
    """Return the session options that differ now, by stage."""
    old = dict(before.stages())
    return {
        name: stage["session_options"]
        for name, stage in after.stages()
        if old[name].get("session_options") != stage.get("session_options")
    }
