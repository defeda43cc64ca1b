"""The options of the VitisAI provider, by Ryzen AI release.

Sources: Ryzen AI Software documentation, docs/modelrun.rst and docs/relnotes.rst of the releases
named in each row; rows that are not documented: github.com/zmaychek84/vaip at ad80269, a public
copy of the provider's core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.hardware.options.option import Option, OptionTable, Values
from vermilion.hardware.targets.npu import ryzen_ai_chips
from vermilion.version import is_older, version_fields

PROVIDER = "VitisAIExecutionProvider"

RELEASES = ("1.2", "1.3", "1.3.1", "1.4", "1.4.1", "1.5", "1.6", "1.7", "1.8")
NEWEST = RELEASES[-1]

# Source: relnotes.rst, 1.4: "Public release for compilation of BF16 CNN and NLP models".
FIRST_BF16_RELEASE = "1.4"

_NAMING_BINARY = ryzen_ai_chips(lambda npu: bool(npu.binary(NEWEST)))

# In 1.4 environment variables became options; in 1.5 these stopped being read (relnotes.rst).
REMOVED_VARIABLES: Mapping[str, str] = {
    "XLNX_ENABLE_CACHE": "delete the folder `cache_dir/cache_key` to compile again",
    "XLNX_TARGET_NAME": "set the option `target`",
    "XLNX_VART_FIRMWARE": f"set the option `xclbin`, on {_NAMING_BINARY} only",
}
VARIABLES_REMOVED_IN = "1.5"

# Variables that are still read and that hide what a user ought to see (vaip,
# vitisai_compile_model.cpp, defaults).
HIDING_VARIABLES: Mapping[str, str] = {
    "XLNX_ENABLE_SKIP_FATAL": "with 1, the default, an exception of the compiler is swallowed and"
    " the model runs on the CPU: set it to 0 while you look for a fault",
}

_UNDOCUMENTED_ROWS: tuple[tuple[str, Values, str], ...] = (
    ("xlnx_enable_py3_round", "flag", "0: rounding as the older quantizer did it"),
    ("xlnx_enable_old_qdq", "flag", "the older form of Q/DQ pairs"),
    ("enable_preemption", "flag", "lets other contexts interrupt a run"),
    ("is_preemptible", "flag", "lets other contexts interrupt a run"),
    ("enable_txn_elf", "flag", "form of the instruction stream"),
    ("target_opts", "text", "JSON for the INT8 compiler (`xcompilerAttrs`)"),
    ("share_context", "flag", "one hardware context for several sessions"),
    ("priority", "text", "of the hardware context"),
    ("perf_pref", "text", "of the hardware context"),
    ("qos_priority", "text", "of the hardware context"),
    ("external_ep_libray", "path", "another provider inside this one; spelt so"),
    ("vaip_disable_cpu_only_inference", "flag", "1: fail where nothing is offloaded"),
    ("model_name", "text", "for the per-model table"),
    ("model_category", "text", "for the per-model table"),
    ("model_variant", "text", "for the per-model table"),
    ("dd_use_lazy_scratch_bo", "flag", "when scratch memory is taken"),
    ("constbo_sharing_key", "text", "sessions of one key share constants"),
    ("XLNX_model_clone_external_data_threshold", "integer", "bytes kept inside the graph"),
)
_UNDOCUMENTED = tuple(
    Option(name, values, meaning, is_documented=False)
    for name, values, meaning in _UNDOCUMENTED_ROWS
)

_ROWS: tuple[Option, ...] = (
    Option(
        "config_file",
        "path",
        "JSON file that configures the compiler: for every model in 1.2 and 1.3"
        " (`vaip_config.json`), for BF16 models since",
    ),
    Option(
        "target",
        "choice",
        f"the compiler: X2 for INT8 on {ryzen_ai_chips(lambda npu: npu.compilers[0] == 'X2')}; X1"
        f" the older one, the only one for {ryzen_ai_chips(lambda npu: npu.compilers == ('X1',))};"
        " VAIML on Versal",
        default="X2",
        choices=("X1", "X2", "VAIML"),
        since="1.6",
    ),
    Option(
        "xclbin",
        "path",
        f"the NPU binary: needed on {_NAMING_BINARY}, forbidden on"
        f" {ryzen_ai_chips(lambda npu: not npu.binary(NEWEST))} from 1.6",
        since="1.4",
    ),
    Option(
        "encryption_key",
        "hex64",
        "encrypts the EP-context model with AES-256",
        other_spellings=("encryptionKey",),
    ),
    Option(
        "opt_level",
        "choice",
        "how hard the INT8 compiler tries",
        default="0",
        choices=("0", "1", "2", "3", "65536"),
    ),
    Option(
        "cache_dir",
        "path",
        "folder of compiled models",
        default=r"C:\temp\%USERNAME%\vaip\.cache, /tmp/$USER/vaip/.cache",
        other_spellings=("cacheDir",),
    ),
    Option(
        "cache_key",
        "text",
        "name of the model's folder in it; never compared with the model",
        default="MD5 over output names and shapes",
        other_spellings=("cacheKey",),
    ),
    Option(
        "enable_cache_file_io_in_mem",
        "choice",
        "1: the compiled INT8 model stays in memory and `cache_dir` stays empty; 0: on disk",
        default="1",
        choices=("0", "1"),
        since="1.5",
    ),
    Option(
        "ai_analyzer_visualization",
        "flag",
        "writes data for AI Analyzer; every session then compiles anew",
        default="false",
    ),
    Option(
        "ai_analyzer_profiling",
        "flag",
        "writes profiling data for AI Analyzer; every session then compiles anew",
        default="false",
    ),
    Option(
        "log_level",
        "text",
        "how much the provider writes",
        until="1.6",
        advice="set `SessionOptions.log_severity_level` (0 to 4) instead",
    ),
    *_UNDOCUMENTED,
)


@dataclass(frozen=True)
class NotForRelease:
    """Why an option is not for a release: it came later, or is gone, with what to do instead."""

    option: Option
    reason: str


def release_row(release: str) -> str:
    """Return the documented release that a version such as `1.7.1` or `1.8.68.0` belongs to."""
    fields = version_fields(release)
    if len(fields) < 2 or fields[0] != 1:
        return NEWEST
    rows = [row for row in RELEASES if not is_older(".".join(map(str, fields[:3])), row)]
    return rows[-1] if rows else RELEASES[0]


def vitisai_table(release: str) -> OptionTable:
    """Return what the provider of a release takes."""
    row = release_row(release)
    return OptionTable(
        provider=PROVIDER,
        build=row,
        title=f"VitisAI provider of Ryzen AI {row}",
        source="Ryzen AI Software documentation, modelrun.rst, relnotes.rst",
        options=tuple(option for option in _ROWS if not _not_in(option, row)),
    )


def not_in_release(written: str, release: str) -> NotForRelease | None:
    """Say why a release does not take a name that another does; None where that is not it."""
    row = release_row(release)
    for option in _ROWS:
        if written == option.name or written in option.other_spellings:
            reason = _not_in(option, row)
            return NotForRelease(option, reason) if reason else None
    return None


def all_options() -> tuple[Option, ...]:
    """Return every option of every release."""
    return _ROWS


def _not_in(option: Option, release: str) -> str:
    if option.since and is_older(release, option.since):
        return f"came with {option.since}; {release} does not know it"
    if option.until and is_older(option.until, release):
        return f"is gone since {option.until}"
    return ""
