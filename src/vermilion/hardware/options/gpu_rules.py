"""What is wrong with options for an AMD GPU's provider, and what they should be.

The ROCm provider is gone since ONNX Runtime 1.23 (microsoft/onnxruntime, pull request 25181): its
options, and those of CUDA that stand where MIGraphX is meant, are moved over.
"""

from __future__ import annotations

from vermilion.hardware.options.gpu import (
    AMDGPU,
    BUILT_IN,
    CUDA_OPTIONS,
    MIGRAPHX,
    PLUGIN,
    ROCM,
    TO_MIGRAPHX,
    TO_PLUGIN,
    gpu_table,
)
from vermilion.hardware.options.option import (
    FALSE_WORDS,
    TRUE_WORDS,
    Draft,
    Option,
    OptionTable,
    Setting,
)

_PREFIX = "migraphx_"


def apply_gpu_rules(draft: Draft, setting: Setting) -> None:
    """Fix `draft` and note what was wrong, for the build in `setting`."""
    build = setting.build or (PLUGIN if draft.provider == AMDGPU else BUILT_IN)
    if draft.provider == ROCM:
        _leave_rocm(draft, build)
    table = gpu_table(draft.provider, build)
    assert table is not None, f"{draft.provider} has a table"
    _drop_cuda(draft)
    for name in list(draft.options):
        _name(draft, table, name)
    _values(draft, table)
    _together(draft, table)


def _leave_rocm(draft: Draft, build: str) -> None:
    draft.note(
        "rocm.gone",
        "error",
        "",
        f"`{ROCM}` is not in ONNX Runtime since 1.23; asked for it, it prints a line and runs on"
        " the CPU",
        f"use `{MIGRAPHX}`",
    )
    draft.provider = MIGRAPHX
    draft.providers = tuple(MIGRAPHX if p == ROCM else p for p in draft.providers)
    target = gpu_table(MIGRAPHX, build)
    for name in list(draft.options):
        if name in CUDA_OPTIONS or name.startswith(_PREFIX):
            continue
        moved = TO_MIGRAPHX.get(name, "")
        if moved and target is not None and target.build == PLUGIN:
            moved = plugin_name(moved)
        if target is not None and moved and target.find(moved) is None:
            moved = ""
        if not moved:
            what = f"`{name}` of the ROCm provider has no counterpart in {target and target.title}"
            draft.note("rocm.option-gone", "error", name, what, "remove it")
            del draft.options[name]
        elif moved != name:
            what = f"`{name}` of the ROCm provider is called `{moved}` now"
            draft.note("rocm.option-renamed", "error", name, what, f"write `{moved}`")
            draft.rename(name, moved)


def plugin_name(built_in: str) -> str:
    """Return the plugin's name of a built-in option, empty where it has none."""
    return TO_PLUGIN.get(built_in, built_in.removeprefix(_PREFIX))


def _drop_cuda(draft: Draft) -> None:
    for name in list(draft.options):
        if name not in CUDA_OPTIONS:
            continue
        what = f"`{name}` is an option of the CUDA provider"
        if name == "cudnn_conv_algo_search" and draft.options[name] == "EXHAUSTIVE":
            tune = "migraphx_exhaustive_tune"
            table = gpu_table(draft.provider, "")
            tune = tune if table is not None and table.find(tune) else "exhaustive_tune"
            draft.note("gpu.cuda-option", "error", name, what, f"`{tune}` = `1` means the same")
            draft.rename(name, tune)
            draft.options[tune] = "1"
            continue
        draft.note("gpu.cuda-option", "error", name, what, "remove it")
        del draft.options[name]


def _name(draft: Draft, table: OptionTable, name: str) -> None:
    option = table.find(name)
    if option is not None:
        if name != option.name:
            what = f"`{name}` is the built-in provider's name; the plugin reads it as an alias"
            draft.note("gpu.alias", "note", name, what, f"write `{option.name}`")
            draft.rename(name, option.name)
        return
    if name in table.removed:
        _removed(draft, table, name)
        return
    other = _other_build(table, name)
    if other is not None:
        what = f"`{name}` is spelt `{other.name}` in the {table.title}"
        draft.note("gpu.prefix", "error", name, what, f"write `{other.name}`")
        draft.rename(name, other.name)
        return
    elsewhere = _known_elsewhere(table, name)
    if elsewhere:
        what = f"`{name}` is an option of the {elsewhere}, not of the {table.title}"
        draft.note("gpu.other-build", "error", name, what, "remove it")
        del draft.options[name]
        return
    near = table.nearest(name) or table.nearest(_PREFIX + name)
    what = f"`{name}` is no option of the {table.title}"
    draft.note("gpu.unknown", "error", name, what, f"write `{near}`" if near else "remove it")
    if near:
        draft.rename(name, near)
    else:
        del draft.options[name]


def _removed(draft: Draft, table: OptionTable, name: str) -> None:
    instead = table.removed[name]
    what = f"`{name}` is gone since ROCm 6.4; old pages still have it"
    if not instead:
        draft.note(
            "gpu.removed",
            "error",
            name,
            what,
            "remove it: `migraphx_model_cache_dir` is all that a cache needs",
        )
        del draft.options[name]
        return
    draft.note("gpu.removed", "error", name, what, f"write `{instead}` with a folder")
    value = draft.options[name].replace("\\", "/")
    folder = value.rpartition("/")[0] if value.endswith(".mxr") else value
    draft.rename(name, instead)
    draft.options[instead] = folder or "."


def _other_build(table: OptionTable, name: str) -> Option | None:
    """Return this build's option that another build calls `name`."""
    if table.build == PLUGIN:
        moved = plugin_name(name) if name.startswith(_PREFIX) else ""
        return table.find(moved) if moved else None
    if name == "cache_dir":
        return table.find("migraphx_model_cache_dir")
    return table.find(_PREFIX + name)


def _known_elsewhere(table: OptionTable, name: str) -> str:
    for build in (BUILT_IN, "built-in-rocm7.2", PLUGIN):
        other = gpu_table(MIGRAPHX, build)
        if other is not None and other is not table and other.find(name) is not None:
            return other.title
    umbrella = gpu_table(AMDGPU, PLUGIN)
    if umbrella is not None and table.provider != AMDGPU and umbrella.find(name) is not None:
        return umbrella.title
    rocm = gpu_table(ROCM, "")
    return rocm.title if rocm is not None and rocm.find(name) is not None else ""


def _values(draft: Draft, table: OptionTable) -> None:
    for name, value in list(draft.options.items()):
        option = table.find(name)
        if option is None or option.takes(value):
            continue
        what = f"`{value}` is no value of `{name}`"
        corrected = _corrected(option, value)
        if corrected:
            draft.note("gpu.value", "error", name, what, f"write `{corrected}`")
            draft.options[name] = corrected
        else:
            draft.note("gpu.value", "error", name, what, f"write {option.expected}")
            del draft.options[name]


def _corrected(option: Option, value: str) -> str:
    if option.values == "flag":
        yes, no = {"yes", "on", "true", "enable"}, {"no", "off", "false", "disable"}
        return "1" if value.lower() in yes else "0" if value.lower() in no else ""
    if option.values == "choice":
        by_lower = {choice.lower(): choice for choice in option.choices}
        return by_lower.get(value.lower(), "")
    if option.values == "integer":
        return _bytes(value)
    return ""


def _bytes(value: str) -> str:
    """Return `2GB` or `2 * 1024` style sizes as a whole number of bytes, empty where it is none."""
    units = {"kb": 2**10, "mb": 2**20, "gb": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    text = value.strip().lower().replace(" ", "")
    for unit, factor in units.items():
        number = text.removesuffix(unit)
        if number != text and number.isdecimal() and len(number) < 7:
            return str(int(number) * factor)
    return ""


def _together(draft: Draft, table: OptionTable) -> None:
    prefix = "" if table.build == PLUGIN else _PREFIX
    if _is_on(draft, f"{prefix}int8_enable") and (
        f"{prefix}int8_calibration_table_name" not in draft.options
    ):
        draft.note(
            "gpu.int8-no-table",
            "error",
            f"{prefix}int8_enable",
            "INT8 without a calibration table: every activation would be scaled by nothing",
            f"give `{prefix}int8_calibration_table_name`, or quantize the model to QDQ and leave"
            " INT8 off",
        )
        del draft.options[f"{prefix}int8_enable"]
    formats = [f for f in ("fp16", "bf16") if _is_on(draft, f"{prefix}{f}_enable")]
    if len(formats) == 2:
        what = "FP16 and BF16 are both on; one of them wins, and which is not documented"
        draft.note("gpu.two-formats", "error", f"{prefix}bf16_enable", what, "keep one of them")
        del draft.options[f"{prefix}bf16_enable"]
    cache = "cache_dir" if table.build == PLUGIN else "migraphx_model_cache_dir"
    if cache in draft.options:
        draft.note(
            "gpu.cache-shared",
            "warning",
            cache,
            "the provider's file names cover neither weights nor precision: two models of one"
            " shape that share the folder run each other's program",
            "one folder a model and precision, named by their digest",
        )
    elif draft.options.get("disable_caching", "0") in FALSE_WORDS:
        what = "no folder of compiled programs: every session compiles anew, up to minutes"
        draft.note("gpu.no-cache", "note", cache, what, f"`{cache}` = a folder of this model's own")


def _is_on(draft: Draft, name: str) -> bool:
    return draft.options.get(name, "") in TRUE_WORDS
