"""Provider options for one NPU and one Ryzen AI release, each with the reason why it is set.

Sources: Ryzen AI documentation, modelrun.rst; Vitis AI documentation for Versal AI Edge Gen 2
(UG1787), model_compilation, ep-config-file.html; relnotes.rst 1.6 (`target` and `targets`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.options.option import Problem
from vermilion.hardware.options.vitisai import (
    FIRST_BF16_RELEASE,
    NEWEST,
    release_row,
    vitisai_table,
)
from vermilion.hardware.targets.npu import (
    TARGETS,
    listed,
    not_on_system,
    npu_facts,
    ryzen_ai_chips,
)
from vermilion.hardware.targets.target import NpuFacts
from vermilion.version import is_older

# Key → (kind or the choices, what it is for).
KEYS: Mapping[str, tuple[str | tuple[object, ...], str]] = {
    "optimize_level": ((1, 2, 3), "how hard the compiler tries"),
    "preferred_data_storage": (
        ("auto", "vectorized", "unvectorized"),
        "vectorized for convolutions, unvectorized for matrix products",
    ),
    "enable_f32_to_bf16_conversion": ("flag", "take float32 models as BF16"),
    "enable_f32_to_f16_conversion": ("flag", "take float32 models as FP16"),
    "device": ("text", "the chip; must be there on Versal"),
    "threshold_gops_percent": ("percent", "regions with less of the work run on the CPU"),
    "dp_size": ("integer", "copies of the model, for throughput"),
    "tp_size": ("integer", "columns that share one run, for latency; 0 decides itself"),
    "keep_outputs": ("flag", "keep what the compiler wrote in between"),
    "logging_level": ("text", "how much the compiler writes"),
    "aie_single_core_compiler": ("text", "the compiler of one core's program"),
    "use_aieir_be": ("flag", "which back end"),
    "device_batch_size": ("integer", "batch entries a run"),
    "custom_ops": ("object", "operators of your own"),
    "fe_experiment": ("text", "flags of the front end"),
    "fe_args": ("text", "the same under its newer name"),
    "experiments": ("any", "groups of flags"),
    "group_args": ("any", "the same under its newer name"),
    "experiment_features": ("list", "experiments by name"),
    "aiecompiler_args": ("text", "given on to the compiler of the array"),
    # From the public copy of the provider's core.
    "max_num_partitions": ("integer", "regions that are compiled, 7 by default"),
    "output_type": ("text", "the stage to stop at"),
    "fatal_error_on_exception": ("flag", "fail where the compiler fails"),
    "no_failsafe": ("flag", "no fallback to the CPU"),
    "force": ("flag", "compile again"),
}

PASSES = ("init", "vaiml_partition")


def build_config(settings: Mapping[str, object], *, with_targets: bool) -> dict[str, object]:
    """Return the file's content; releases from 1.6 on need `target` and `targets` in it."""
    config: dict[str, object] = {
        "passes": [
            {"name": "init", "plugin": "vaip-pass_init"},
            {
                "name": "vaiml_partition",
                "plugin": "vaip-pass_vaiml_partition",
                "vaiml_config": dict(settings),
            },
        ]
    }
    if with_targets:
        config |= {"target": "VAIML", "targets": [{"name": "VAIML", "pass": list(PASSES)}]}
    return config


def is_vaiml_config(config: Mapping[str, object]) -> bool:
    """Say whether a configuration has the pass that compiles BF16."""
    return any(isinstance(p, dict) and p.get("name") == "vaiml_partition" for p in _passes(config))


def vaiml_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return the `vaiml_config` of a configuration, empty where there is none."""
    for step in _passes(config):
        found = step.get("vaiml_config") if isinstance(step, dict) else None
        if isinstance(found, dict):
            return {str(key): value for key, value in found.items()}
    return {}


def check_config(
    config: Mapping[str, object], *, needs_targets: bool, device_code: str
) -> Iterator[Problem]:
    """Find what is wrong with a BF16 configuration."""
    missing = [key for key in ("target", "targets") if key not in config]
    if needs_targets and missing:
        names = " and ".join(f"`{key}`" for key in missing)
        yield Problem(
            "config.no-target",
            "error",
            "config_file",
            f"the BF16 configuration has no {names}: since 1.6 the provider then finds no target",
            "both are in the corrected file",
        )
    settings = vaiml_settings(config)
    for key, value in settings.items():
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.7)
            meant = f"did you mean `{close[0]}`?" if close else "remove it"
            yield Problem(
                "config.unknown", "error", f"vaiml_config.{key}", f"no such key `{key}`", meant
            )
            continue
        wanted = _complaint(KEYS[key][0], value)
        if wanted:
            yield Problem(
                "config.value",
                "error",
                f"vaiml_config.{key}",
                f"`{value}` is no value of `{key}`",
                f"write {wanted}",
            )
    written = str(settings.get("device", ""))
    if written and device_code and not written.startswith(device_code):
        yield Problem(
            "config.device",
            "error",
            "vaiml_config.device",
            f"the configuration is for `{written}`, the device is `{device_code}`",
            f'"device": "{device_code}"',
        )


def corrected_config(
    config: Mapping[str, object], *, needs_targets: bool, device_code: str
) -> dict[str, object]:
    """Return the configuration with what `check_config` finds corrected."""
    settings: dict[str, object] = {}
    for key, value in vaiml_settings(config).items():
        known = key
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.7)
            if not close:
                continue
            known = close[0]
        if not _complaint(KEYS[known][0], value):
            settings[known] = value
    if device_code and "device" in settings:
        settings["device"] = device_code
    return build_config(settings, with_targets=needs_targets)


def _passes(config: Mapping[str, object]) -> list[object]:
    found = config.get("passes")
    return found if isinstance(found, list) else []


def _complaint(kind: str | tuple[object, ...], value: object) -> str:
    """Say what the value should be, empty where it is right."""
    if isinstance(kind, tuple):
        right = value in kind and not isinstance(value, bool)
        return "" if right else "one of " + ", ".join(f"`{choice}`" for choice in kind)
    checks = {
        "flag": (isinstance(value, bool) or value in (0, 1), "true or false"),
        "text": (isinstance(value, str), "text"),
        "integer": (isinstance(value, int) and not isinstance(value, bool), "a whole number"),
        "percent": (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100,
            "a number from 0 to 100",
        ),
        "list": (isinstance(value, list), "a list"),
        "object": (isinstance(value, dict), "an object"),
        "any": (True, ""),
    }
    is_right, wanted = checks[kind]
    return "" if is_right else wanted


Precision = Literal["int8", "bf16"]

_DEFAULT_CONFIG = "voe-4.0-win_amd64/vaip_config.json"
INSTALLATION = "%RYZEN_AI_INSTALLATION_PATH%"


@dataclass(frozen=True)
class Request:
    """What is to be compiled where. `settings` are keys for the BF16 configuration file."""

    device: str
    release: str
    precision: Precision
    system: str = "Windows"
    installation: str = INSTALLATION
    cache_dir: str = ""
    cache_key: str = ""
    encryption_key: str = ""
    opt_level: str = ""
    config_path: str = "vaiml_config.json"
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltOptions:
    """Provider options, the files and variables they need, and why each is there.

    `reasons` is by option, by `environment NAME`, and by `no NAME` for what is left out on purpose.
    """

    options: Mapping[str, str]
    reasons: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] | None = None
    session_entries: Mapping[str, str] = field(default_factory=dict)

    def config_text(self) -> str:
        """Return the configuration file's text."""
        return json.dumps(self.config, indent=2) + "\n"


def build_options(request: Request) -> BuiltOptions:
    """Return the options for a device and a release.

    Raises: UnsupportedError where the release does not do that on the device; OptionError for a
    value that it would not take.
    """
    npu = npu_facts(request.device)
    if npu is None:
        raise UnsupportedError(
            f"the VitisAI provider does not drive `{request.device}`",
            hint=f"its devices are {', '.join(target.name for target in TARGETS)}",
        )
    row = release_row(request.release) if npu.first_release else NEWEST
    _check_pair(request, npu, row)
    options: dict[str, str] = {}
    reasons: dict[str, str] = {}
    environment: dict[str, str] = {}
    config: dict[str, object] | None = None
    if request.precision == "bf16":
        config = _bf16(request, npu, row, options, reasons)
    else:
        _int8(request, npu, row, options, reasons, environment)
    _cache(request, row, options, reasons)
    if request.encryption_key:
        options["encryption_key"] = request.encryption_key
        reasons["encryption_key"] = "encrypts the EP-context model, as asked"
    table = vitisai_table(row)
    for name, value in options.items():
        option = table.find(name)
        assert option is not None, f"{name} is in the table of {row}"
        if not option.takes(value):
            raise OptionError(
                f"`{value}` is no value of `{name}`", where=table.title, hint=option.expected
            )
    return BuiltOptions(_spelt_for(options, row), reasons, environment, config)


def _check_pair(request: Request, npu: NpuFacts, row: str) -> None:
    first = npu.first_release
    where = f"{request.device}, Ryzen AI {row}"
    if first and is_older(row, first):
        raise UnsupportedError(
            f"Ryzen AI {row} does not support {request.device}",
            where=where,
            hint=f"install Ryzen AI {first} or newer",
        )
    if request.precision == "bf16" and "bf16" not in npu.operators:
        raise UnsupportedError(
            f"{npu.chips} run INT8 convolutional networks and nothing else",
            where=where,
            hint="quantize: `vermilion quantize MODEL --scheme xint8 --calib DIR`",
        )
    if request.system in npu.not_on:
        raise UnsupportedError(
            not_on_system(npu, request.system),
            where=where,
            hint="use Windows for this NPU",
        )
    if request.precision == "bf16" and is_older(row, FIRST_BF16_RELEASE):
        raise UnsupportedError(
            f"Ryzen AI {row} does not compile BF16 models",
            where=where,
            hint=f"install Ryzen AI {FIRST_BF16_RELEASE} or newer, or quantize to INT8",
        )


def _bf16(
    request: Request, npu: NpuFacts, row: str, options: dict[str, str], reasons: dict[str, str]
) -> dict[str, object]:
    options["config_file"] = request.config_path
    reasons["config_file"] = "BF16 models are compiled by what stands in this file"
    _only_compiler(npu, options, reasons)
    with_targets = not is_older(row, "1.6")
    if with_targets:
        reasons["config_file"] += "; since 1.6 with `target` and `targets`, or none is found"
        reasons["no xclbin"] = f"{row} refuses it on {request.device}"
    settings = {"device": npu.vaiml_code, "optimize_level": 1} | dict(request.settings)
    return build_config(settings, with_targets=with_targets)


def _only_compiler(npu: NpuFacts, options: dict[str, str], reasons: dict[str, str]) -> None:
    if len(npu.compilers) == 1:
        options["target"] = npu.compilers[0]
        reasons["target"] = f"the only compiler for {npu.chips}"


def _int8(
    request: Request,
    npu: NpuFacts,
    row: str,
    options: dict[str, str],
    reasons: dict[str, str],
    environment: dict[str, str],
) -> None:
    if is_older(row, "1.4"):
        options["config_file"] = below(request.installation, _DEFAULT_CONFIG)
        reasons["config_file"] = f"must be there in {row}, for every model"
    xclbin = npu.binary(row)
    if not xclbin:
        reasons["no xclbin"] = f"{row} refuses it on {request.device}"
    elif is_older(row, "1.4"):
        environment["XLNX_VART_FIRMWARE"] = below(request.installation, xclbin)
        reasons["environment XLNX_VART_FIRMWARE"] = f"{row} takes the NPU binary from it"
    else:
        options["xclbin"] = below(request.installation, xclbin)
        reasons["xclbin"] = f"the NPU binary that {row} wants named on {request.device}"
    if xclbin and row in npu.without_binary:
        reasons["xclbin"] += f"; {npu.without_binary[row]}"
    for name, (value, why) in npu.settings(row).items():
        options[name] = value
        reasons[name] = why
    if not is_older(row, "1.6"):
        options["target"], *others = npu.compilers
        reasons["target"] = (
            f"the INT8 compiler for {ryzen_ai_chips(lambda one: one.compilers == npu.compilers)};"
            f" {listed(others)} is allowed where it does better"
            if others
            else f"the only compiler for {npu.chips}"
        )
    if request.opt_level:
        options["opt_level"] = request.opt_level
        reasons["opt_level"] = "as asked"


def _cache(request: Request, row: str, options: dict[str, str], reasons: dict[str, str]) -> None:
    if not request.cache_dir:
        return
    options["cache_dir"] = request.cache_dir
    reasons["cache_dir"] = "the folder that is looked at afterwards"
    if request.cache_key:
        options["cache_key"] = request.cache_key
        reasons["cache_key"] = (
            "the provider's own key leaves out weights, options and versions; this one is ours"
        )
    if not is_older(row, "1.5"):
        options["enable_cache_file_io_in_mem"] = "0"
        reasons["enable_cache_file_io_in_mem"] = (
            "with 1, the default, nothing is written into `cache_dir`"
        )


def _spelt_for(options: Mapping[str, str], row: str) -> dict[str, str]:
    """Spell the names as the release's own documentation does."""
    if not is_older(row, "1.4"):
        return dict(options)
    old = {"cache_dir": "cacheDir", "cache_key": "cacheKey", "encryption_key": "encryptionKey"}
    return {old.get(name, name): value for name, value in options.items()}


def below(folder: str, path: str) -> str:
    """Return a path below a folder, spelt as the folder's system does."""
    windows = "%" in folder or "\\" in folder or PurePath(folder).drive
    return f"{folder}\\" + path.replace("/", "\\") if windows else f"{folder}/{path}"
