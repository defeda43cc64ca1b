"""The configuration file by which the provider's BF16 compiler (VAIML) is told what to do.

Sources: Ryzen AI documentation, modelrun.rst; Vitis AI documentation for Versal AI Edge Gen 2
(UG1787), model_compilation, ep-config-file.html; relnotes.rst 1.6 (`target` and `targets`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from vermilion.hardware.options.option import Problem

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
