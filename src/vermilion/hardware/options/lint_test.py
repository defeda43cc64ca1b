"""Option sets that people posted, shortened to what is wrong, each with its corrected form."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vermilion.hardware.options.gpu import AMDGPU, BUILT_IN_WHEEL, MIGRAPHX, PLUGIN, ROCM, TABLES
from vermilion.hardware.options.lint import corrected_text, lint
from vermilion.hardware.options.option import OptionSet, Setting
from vermilion.hardware.options.vitisai import PROVIDER, RELEASES, vitisai_table

PHOENIX_4X4 = r"%RYZEN_AI_INSTALLATION_PATH%\voe-4.0-win_amd64\xclbins\phoenix\4x4.xclbin"
KEY = "89703f950ed9f738d956f6769d7e45a385d3c988ca753838b5afbc569ebf35b2"
ISSUES = "https://github.com/amd/RyzenAI-SW/issues"


@dataclass(frozen=True)
class Case:
    source: str
    provider: str
    given: dict[str, str]
    problems: set[str]
    corrected: dict[str, str]
    setting: Setting = field(default_factory=Setting)
    provider_after: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    environment_after: dict[str, str] = field(default_factory=dict)


NPU_CASES = [
    Case(
        f"{ISSUES}/350: Phoenix without target and binary",
        PROVIDER,
        {"xlnx_enable_py3_round": "0"},
        {"vitisai.undocumented", "vitisai.target", "vitisai.xclbin-missing"},
        {"xlnx_enable_py3_round": "0", "target": "X1", "xclbin": PHOENIX_4X4},
        Setting("1.6", "phoenix"),
    ),
    Case(
        "RyzenAI-SW, getting_started_resnet: a binary on Strix in 1.6",
        PROVIDER,
        {
            "cache_dir": "cache",
            "xclbin": r"C:\voe-4.0-win_amd64\xclbins\strix\AMD_AIE2P_4x4_Overlay.xclbin",
        },
        {"vitisai.xclbin-forbidden", "vitisai.cache-in-memory"},
        {"cache_dir": "cache", "enable_cache_file_io_in_mem": "0"},
        Setting("1.6", "strix", "int8"),
    ),
    Case(
        "Ryzen AI 1.3 hello_world carried to 1.7: spelling, configuration, folder stays empty",
        PROVIDER,
        {"config_file": "vaip_config.json", "cacheDir": "c", "cacheKey": "hello"},
        {
            "vitisai.old-spelling",
            "vitisai.config-for-int8",
            "vitisai.cache-in-memory",
            "vitisai.cache-key-unchecked",
        },
        {"cache_dir": "c", "cache_key": "hello", "enable_cache_file_io_in_mem": "0"},
        Setting("1.7", "strix", "int8"),
    ),
    Case(
        "the 1.2 documentation's example without what it calls mandatory",
        PROVIDER,
        {"cacheDir": "c"},
        {"vitisai.config-missing"},
        {
            "cacheDir": "c",
            "config_file": r"%RYZEN_AI_INSTALLATION_PATH%\voe-4.0-win_amd64\vaip_config.json",
        },
        Setting("1.2", "phoenix"),
    ),
    Case(
        "relnotes.rst 1.5: the 1x4 binary is retired",
        PROVIDER,
        {"target": "X1", "xclbin": r"C:\xclbins\phoenix\1x4.xclbin"},
        {"vitisai.xclbin-retired", "vitisai.setting"},
        {"target": "X1", "xclbin": PHOENIX_4X4, "xlnx_enable_py3_round": "0"},
        Setting("1.7", "phoenix"),
    ),
    Case(
        "relnotes.rst 1.7: log_level",
        PROVIDER,
        {"target": "X2", "log_level": "info"},
        {"vitisai.not-in-release"},
        {"target": "X2"},
        Setting("1.7", "strix"),
    ),
    Case(
        f"{ISSUES}/85 and /126: variables of 1.4 in 1.5",
        PROVIDER,
        {},
        {"vitisai.variable-gone", "vitisai.variable-hides"},
        {},
        Setting("1.5", "strix"),
        environment={
            "XLNX_ENABLE_CACHE": "0",
            "XLNX_VART_FIRMWARE": "x.xclbin",
            "XLNX_ENABLE_SKIP_FATAL": "1",
        },
        environment_after={"XLNX_ENABLE_SKIP_FATAL": "1"},
    ),
    Case(
        f"{ISSUES}/365: X2 on Phoenix, a level that is none",
        PROVIDER,
        {"target": "x2", "opt_level": "O3", "xclbin": PHOENIX_4X4},
        {"vitisai.target", "vitisai.value", "vitisai.setting", "vitisai.xclbin-not-shipped"},
        {"target": "X1", "xclbin": PHOENIX_4X4, "xlnx_enable_py3_round": "0"},
        Setting("1.8", "phoenix"),
    ),
    Case(
        "AI Analyzer left on: every session compiles",
        PROVIDER,
        {"ai_analyzer_profiling": "true", "cache_dir": "c", "enable_cache_file_io_in_mem": "False"},
        {"vitisai.analyzer", "vitisai.value"},
        {"ai_analyzer_profiling": "true", "cache_dir": "c", "enable_cache_file_io_in_mem": "0"},
        Setting("1.8", "krackan"),
    ),
    Case(
        "a key that is too short, a name that is nearly right, one that is nothing",
        PROVIDER,
        {"encryptionKey": KEY[:40], "chace_dir": "c", "num_threads": "8"},
        {"vitisai.old-spelling", "vitisai.value", "vitisai.unknown", "vitisai.cache-in-memory"},
        {"cache_dir": "c", "enable_cache_file_io_in_mem": "0"},
        Setting("1.8", "strix"),
    ),
    Case(
        f"{ISSUES}/374: the provider's name misspelt, all on the CPU",
        "VitisAIExecutionprovider",
        {"target": "X2"},
        {"provider.unknown"},
        {"target": "X2"},
        Setting("1.8", "strix"),
        PROVIDER,
    ),
]

GPU_CASES = [
    Case(
        "https://github.com/microsoft/onnxruntime/issues/25379",
        MIGRAPHX,
        {"migraphx_load_compiled_model": "1", "migraphx_load_compiled_path": "/c/m.mxr"},
        {"gpu.removed", "gpu.cache-shared"},
        {"migraphx_model_cache_dir": "/c"},
    ),
    Case(
        "plugin names in the built-in provider",
        MIGRAPHX,
        {"fp16_enable": "1", "exhaustive_tune": "1"},
        {"gpu.prefix", "gpu.no-cache"},
        {"migraphx_fp16_enable": "1", "migraphx_exhaustive_tune": "1"},
    ),
    Case(
        "the built-in cache folder in the plugin, which fails on it",
        MIGRAPHX,
        {"migraphx_model_cache_dir": "c"},
        {"gpu.prefix", "gpu.cache-shared"},
        {"cache_dir": "c"},
        Setting(PLUGIN),
    ),
    Case(
        "built-in memory options in the plugin",
        MIGRAPHX,
        {"migraphx_mem_limit": "1", "migraphx_arena_extend_strategy": "kSameAsRequested"},
        {"gpu.other-build", "gpu.no-cache"},
        {},
        Setting(PLUGIN),
    ),
    Case(
        "an alias that the plugin still reads",
        MIGRAPHX,
        {"migraphx_fp16_enable": "1", "cache_dir": "c"},
        {"gpu.alias", "gpu.cache-shared"},
        {"fp16_enable": "1", "cache_dir": "c"},
        Setting(PLUGIN),
    ),
    Case(
        "the ROCm provider with its own options",
        ROCM,
        {
            "device_id": "0",
            "gpu_mem_limit": "2147483648",
            "arena_extend_strategy": "kSameAsRequested",
            "miopen_conv_exhaustive_search": "1",
            "do_copy_in_default_stream": "1",
        },
        {"rocm.gone", "rocm.option-renamed", "rocm.option-gone", "gpu.no-cache"},
        {
            "device_id": "0",
            "migraphx_mem_limit": "2147483648",
            "migraphx_arena_extend_strategy": "kSameAsRequested",
            "migraphx_exhaustive_tune": "1",
        },
        provider_after=MIGRAPHX,
    ),
    Case(
        "the ROCm guide's CUDA option",
        ROCM,
        {"device_id": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"},
        {"rocm.gone", "gpu.cuda-option", "gpu.no-cache"},
        {"device_id": "0", "migraphx_exhaustive_tune": "1"},
        provider_after=MIGRAPHX,
    ),
    Case(
        "the ROCm provider to the plugin",
        ROCM,
        {"gpu_mem_limit": "1", "tunable_op_enable": "1"},
        {"rocm.gone", "rocm.option-gone", "rocm.option-renamed", "gpu.no-cache"},
        {"exhaustive_tune": "1"},
        Setting(PLUGIN),
        MIGRAPHX,
    ),
    Case(
        "CUDA options for MIGraphX",
        MIGRAPHX,
        {"use_tf32": "0", "enable_cuda_graph": "1"},
        {"gpu.cuda-option", "gpu.no-cache"},
        {},
    ),
    Case(
        "INT8 without a table",
        MIGRAPHX,
        {"migraphx_int8_enable": "1"},
        {"gpu.int8-no-table", "gpu.no-cache"},
        {},
    ),
    Case(
        "two formats at once",
        MIGRAPHX,
        {"migraphx_fp16_enable": "1", "migraphx_bf16_enable": "1"},
        {"gpu.two-formats", "gpu.no-cache"},
        {"migraphx_fp16_enable": "1"},
    ),
    Case(
        "a size with its unit, a strategy in the wrong case",
        MIGRAPHX,
        {"migraphx_mem_limit": "2GB", "migraphx_arena_extend_strategy": "knextpoweroftwo"},
        {"gpu.value", "gpu.no-cache"},
        {
            "migraphx_mem_limit": "2147483648",
            "migraphx_arena_extend_strategy": "kNextPowerOfTwo",
        },
    ),
    Case(
        "upstream's option in the PyPI wheel, whose library has no such name",
        MIGRAPHX,
        {"migraphx_max_dynamic_batch": "8"},
        {"gpu.other-build", "gpu.no-cache"},
        {},
        Setting(BUILT_IN_WHEEL),
    ),
    Case(
        "a name nearly right, a flag that is a word",
        MIGRAPHX,
        {"migraphx_exhaustive_tuning": "yes"},
        {"gpu.unknown", "gpu.value", "gpu.no-cache"},
        {"migraphx_exhaustive_tune": "1"},
    ),
    Case(
        "MIGraphX' precision for the umbrella provider",
        AMDGPU,
        {"fp16_enable": "1", "cache_dir": "c"},
        {"gpu.other-build", "gpu.cache-shared"},
        {"cache_dir": "c"},
        Setting(PLUGIN),
    ),
    Case(
        "the short name, misspelt",
        "MIGraphXExecutionProvidr",
        {"compute_mode": "fast"},
        {"provider.unknown", "gpu.value", "gpu.no-cache"},
        {},
        Setting(PLUGIN),
        MIGRAPHX,
    ),
]


@pytest.mark.parametrize("case", [*NPU_CASES, *GPU_CASES], ids=lambda case: case.source[:60])
def test_a_wrong_set_is_named_and_corrected(case: Case) -> None:
    given = OptionSet(case.provider, case.given, environment=case.environment)
    linted = lint(given, case.setting)
    assert {problem.id for problem in linted.problems} == case.problems
    assert dict(linted.corrected.options) == case.corrected
    assert linted.corrected.provider == (case.provider_after or case.provider)
    assert dict(linted.corrected.environment) == case.environment_after
    assert all(problem.what for problem in linted.problems)


@pytest.mark.parametrize("case", [*NPU_CASES, *GPU_CASES], ids=lambda case: case.source[:60])
def test_the_corrected_form_has_no_error_left(case: Case) -> None:
    given = OptionSet(case.provider, case.given, environment=case.environment)
    corrected = lint(given, case.setting).corrected
    again = lint(corrected, case.setting)
    assert again.errors == 0
    assert again.corrected.options == corrected.options


def test_ten_and_fifteen_of_them() -> None:
    assert len(NPU_CASES) >= 10
    assert len(GPU_CASES) >= 15


def test_a_bf16_file_without_targets_is_completed_from_1_6_on() -> None:
    config = {
        "passes": [
            {"name": "init", "plugin": "vaip-pass_init"},
            {
                "name": "vaiml_partition",
                "plugin": "vaip-pass_vaiml_partition",
                "vaiml_config": {
                    "optimise_level": 2,
                    "preferred_data_storage": "nchw",
                    "device": "phx",
                },
            },
        ]
    }
    given = OptionSet(PROVIDER, {"config_file": "v.json", "opt_level": "3"}, config=config)
    linted = lint(given, Setting("1.7", "strix"))
    ids = {problem.id for problem in linted.problems}
    assert ids == {
        "vitisai.opt-level-for-bf16",
        "config.no-target",
        "config.unknown",
        "config.value",
        "config.device",
    }
    corrected = linted.corrected.config
    assert corrected is not None
    assert corrected["target"] == "VAIML"
    assert corrected["targets"] == [{"name": "VAIML", "pass": ["init", "vaiml_partition"]}]
    assert corrected["passes"][1]["vaiml_config"] == {"optimize_level": 2, "device": "stx"}
    assert lint(linted.corrected, Setting("1.7", "strix")).problems == ()
    before = lint(given, Setting("1.5", "strix"))
    assert "config.no-target" not in {problem.id for problem in before.problems}


def test_bf16_on_phoenix_is_refused() -> None:
    config = {"passes": [{"name": "vaiml_partition", "vaiml_config": {}}]}
    linted = lint(
        OptionSet(PROVIDER, {"config_file": "v"}, config=config), Setting("1.8", "phoenix")
    )
    assert "vitisai.phoenix-bf16" in {problem.id for problem in linted.problems}
    assert "config_file" not in linted.corrected.options


def test_values_that_are_no_text() -> None:
    given = OptionSet(
        PROVIDER,
        {"target": "None", "ai_analyzer_profiling": "False"},
        not_text={"target": "NoneType", "ai_analyzer_profiling": "bool"},
    )
    linted = lint(given, Setting("1.8", "strix"))
    assert [problem.id for problem in linted.problems] == ["value.none", "value.not-text"]
    assert linted.corrected.options == {"ai_analyzer_profiling": "0"}


def test_every_table_takes_what_it_lists() -> None:
    tables = [*TABLES, *(vitisai_table(release) for release in RELEASES)]
    for table in tables:
        names = [option.name for option in table.options]
        assert len(names) == len(set(names)), table.title
        for option in table.options:
            assert all(option.takes(choice) for choice in option.choices)
            assert option.meaning
            assert option.expected


def test_the_corrected_form_is_python_and_json() -> None:
    given = OptionSet(ROCM, {"device_id": "0"}, providers=(ROCM, "CPUExecutionProvider"))
    linted = lint(given, Setting())
    text = corrected_text(linted, as_json=False)
    namespace: dict[str, object] = {}
    exec(text, namespace)
    assert namespace["providers"] == [MIGRAPHX, "CPUExecutionProvider"]
    assert namespace["provider_options"] == [{"device_id": "0"}, {}]
    assert '"provider": "MIGraphXExecutionProvider"' in corrected_text(linted, as_json=True)
