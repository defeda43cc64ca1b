"""What is wrong with options for the VitisAI provider, and what they should be."""

from __future__ import annotations

import re
from collections.abc import Callable

from vermilion.hardware.options.option import FALSE_WORDS, TRUE_WORDS, Draft, Setting
from vermilion.hardware.options.vitisai import (
    HIDING_VARIABLES,
    NEWEST,
    REMOVED_VARIABLES,
    VARIABLES_REMOVED_IN,
    not_in_release,
    release_row,
    vitisai_table,
)
from vermilion.hardware.options.vitisai_build import (
    INSTALLATION,
    below,
    check_config,
    corrected_config,
    is_vaiml_config,
)
from vermilion.hardware.targets.npu import TARGETS, not_on_system, npu_facts
from vermilion.version import is_older

# Retired in 1.5, all but Phoenix' 4x4 (relnotes.rst).
_RETIRED_BINARY = re.compile(r"(?:1x4|5x4|Nx4)[^/\\]*\.xclbin$", re.IGNORECASE)
_DEFAULT_CONFIG = below(INSTALLATION, "voe-4.0-win_amd64/vaip_config.json")

Rule = Callable[[Draft, Setting], None]


def apply_vitisai_rules(draft: Draft, setting: Setting) -> None:
    """Fix `draft` and note what was wrong, for the release and device in `setting`."""
    row = release_row(setting.build or NEWEST)
    known = Setting(row, setting.device, setting.precision or _precision(draft), setting.system)
    for rule in _RULES:
        rule(draft, known)


def _precision(draft: Draft) -> str:
    return "bf16" if draft.config is not None and is_vaiml_config(draft.config) else ""


def _names(draft: Draft, setting: Setting) -> None:
    table = vitisai_table(setting.build)
    for name in list(draft.options):
        option = table.find(name)
        if option is None:
            _unknown_name(draft, setting, name)
            continue
        if name != option.name and not is_older(setting.build, "1.4"):
            what = f"`{name}` is how 1.2 and 1.3 spelt `{option.name}`; both are read"
            draft.note("vitisai.old-spelling", "note", name, what, f"write `{option.name}`")
            draft.rename(name, option.name)
        npu = npu_facts(setting.device)
        is_set = npu is not None and option.name in npu.settings(setting.build)
        if not option.is_documented and not is_set:
            what = f"`{name}` is in no release's documentation; it may vanish without a word"
            draft.note("vitisai.undocumented", "note", name, what)


def _unknown_name(draft: Draft, setting: Setting, name: str) -> None:
    gone = not_in_release(name, setting.build)
    if gone is not None:
        fix = gone.option.advice or "remove it"
        draft.note("vitisai.not-in-release", "error", name, f"`{name}` {gone.reason}", fix)
        del draft.options[name]
        return
    near = vitisai_table(setting.build).nearest(name)
    what = f"`{name}` is no option of the VitisAI provider, which ignores what it does not know"
    fix = f"write `{near}`" if near else "remove it"
    draft.note("vitisai.unknown", "error", name, what, fix)
    if near:
        draft.rename(name, near)
    else:
        del draft.options[name]


def _values(draft: Draft, setting: Setting) -> None:
    table = vitisai_table(setting.build)
    for name, value in list(draft.options.items()):
        option = table.find(name)
        if option is None or option.takes(value) or name == "target":
            continue
        if option.values == "choice" and value in TRUE_WORDS | {"false", "False"}:
            corrected = "1" if value in TRUE_WORDS else "0"
            if option.takes(corrected):
                draft.note(
                    "vitisai.value",
                    "error",
                    name,
                    f"`{value}` is no value of `{name}`",
                    f"write `{corrected}`",
                )
                draft.options[name] = corrected
                continue
        draft.note(
            "vitisai.value",
            "error",
            name,
            f"`{value}` is no value of `{name}`",
            f"write {option.expected}; without the option it is {option.default or 'not set'}",
        )
        del draft.options[name]


def _device(draft: Draft, setting: Setting) -> None:
    npu = npu_facts(setting.device)
    if npu is None:
        if setting.device:
            what = f"the VitisAI provider does not drive `{setting.device}`"
            names = ", ".join(target.name for target in TARGETS)
            draft.note("vitisai.device", "error", "", what, f"its devices are {names}")
        return
    if setting.precision == "bf16" and "bf16" not in npu.operators:
        draft.note(
            f"vitisai.{setting.device}-bf16",
            "error",
            "config_file",
            f"{npu.chips} run INT8 convolutional networks; this configures BF16",
            "quantize the model to INT8 and leave the file out",
        )
        draft.options.pop("config_file", None)
        draft.config = None
    if setting.system in npu.not_on:
        note_id = f"vitisai.{setting.device}-{setting.system.lower()}"
        what = not_on_system(npu, setting.system)
        draft.note(note_id, "error", "", what, "use Windows for this NPU")


def _target(draft: Draft, setting: Setting) -> None:
    if is_older(setting.build, "1.6") or not setting.device:
        known = vitisai_table(setting.build).find("target")
        written = draft.options.get("target", "")
        if written and known is not None and not known.takes(written):
            what = f"`{written}` is no compiler of the provider"
            draft.note("vitisai.target", "error", "target", what, f"write {known.expected}")
            _set_near_target(draft, written)
        return
    npu = npu_facts(setting.device)
    wanted = npu.compilers[0] if npu is not None and len(npu.compilers) == 1 else ""
    written = draft.options.get("target", "")
    if wanted and written != wanted:
        what = (
            f"`target` is {f'`{written}`' if written else 'X2 where it is not set'}; on"
            f" {setting.device} only {wanted} compiles"
        )
        draft.note("vitisai.target", "error", "target", what, f"`target` = `{wanted}`")
        draft.options["target"] = wanted
    elif not wanted and written not in ("", "X1", "X2", "VAIML"):
        what = f"`{written}` is no compiler of the provider"
        draft.note("vitisai.target", "error", "target", what, "`target` = `X2`, or X1")
        _set_near_target(draft, written)


def _set_near_target(draft: Draft, written: str) -> None:
    upper = written.upper()
    if upper in ("X1", "X2", "VAIML"):
        draft.options["target"] = upper
    else:
        del draft.options["target"]


def _binary(draft: Draft, setting: Setting) -> None:
    written = draft.options.get("xclbin", "")
    npu = npu_facts(setting.device)
    if npu is None or not npu.binaries:
        return
    since, named = npu.binaries[-1]
    if not named:
        if written and not is_older(setting.build, since):
            what = f"`xclbin` must not be set on {setting.device} since {since}"
            draft.note("vitisai.xclbin-forbidden", "error", "xclbin", what, "remove it")
            del draft.options["xclbin"]
        return
    if is_older(setting.build, "1.4"):
        return
    wanted = below(INSTALLATION, named)
    fix = f"`xclbin` = `{wanted}`"
    if not written:
        what = f"{npu.chips} need their NPU binary named"
        draft.note("vitisai.xclbin-missing", "error", "xclbin", what, fix)
        draft.options["xclbin"] = wanted
    elif not is_older(setting.build, since) and (
        _RETIRED_BINARY.search(written) or setting.device not in written.lower()
    ):
        what = f"`{written}` is no binary for {npu.chips} since {since}"
        draft.note("vitisai.xclbin-retired", "error", "xclbin", what, fix)
        draft.options["xclbin"] = wanted

    if setting.build in npu.without_binary:
        what = npu.without_binary[setting.build]
        draft.note("vitisai.xclbin-not-shipped", "warning", "xclbin", what)


def _settings(draft: Draft, setting: Setting) -> None:
    """Set what INT8 models want on this chip and in this release."""
    npu = npu_facts(setting.device)
    if npu is None or setting.precision == "bf16":
        return
    for name, (value, why) in npu.settings(setting.build).items():
        written = draft.options.get(name)
        if written is None or written in (TRUE_WORDS if value == "0" else FALSE_WORDS):
            what = f"`{name}` is {f'`{written}`' if written else 'not set'}; wanted is {why}"
            draft.note("vitisai.setting", "warning", name, what, f"`{name}` = `{value}`")
            draft.options[name] = value


def _cache(draft: Draft, setting: Setting) -> None:
    in_memory = draft.options.get("enable_cache_file_io_in_mem", "1") == "1"
    if is_older(setting.build, "1.5"):
        return
    if "cache_dir" in draft.options and in_memory:
        is_bf16 = setting.precision == "bf16"
        draft.note(
            "vitisai.cache-in-memory",
            "error" if is_bf16 else "warning",
            "enable_cache_file_io_in_mem",
            "BF16 models are not kept in memory"
            if is_bf16
            else "since 1.5 nothing is written into `cache_dir` unless this is 0: the model is"
            " compiled anew in each process",
            "`enable_cache_file_io_in_mem` = `0`",
        )
        draft.options["enable_cache_file_io_in_mem"] = "0"
    if "cache_key" in draft.options:
        draft.note(
            "vitisai.cache-key-unchecked",
            "note",
            "cache_key",
            "the provider never compares the key with the model: new weights under an old key run"
            " the old weights",
            "make the key a digest of model, options, provider and driver (`vermilion compile`"
            " does)",
        )


def _analyzer(draft: Draft, setting: Setting) -> None:
    for name in ("ai_analyzer_profiling", "ai_analyzer_visualization"):
        if draft.options.get(name, "") in TRUE_WORDS:
            what = f"`{name}` makes every session compile the model anew"
            draft.note("vitisai.analyzer", "warning", name, what, "only set it to look at a model")


def _configuration(draft: Draft, setting: Setting) -> None:
    name = "config_file"
    if is_older(setting.build, "1.4"):
        if name not in draft.options:
            what = f"{setting.build} must be given `config_file`"
            fix = f"`config_file` = `{_DEFAULT_CONFIG}`"
            draft.note("vitisai.config-missing", "error", name, what, fix)
            draft.options[name] = _DEFAULT_CONFIG
        return
    if name in draft.options and setting.precision == "int8":
        what = "`config_file` is for BF16 models; an INT8 model needs none since 1.4"
        draft.note("vitisai.config-for-int8", "warning", name, what, "remove it")
        del draft.options[name]
        draft.config = None
        return
    if setting.precision == "bf16" and "opt_level" in draft.options:
        what = "`opt_level` is for INT8 models"
        fix = "remove it; `optimize_level` in the configuration file is BF16's"
        draft.note("vitisai.opt-level-for-bf16", "warning", "opt_level", what, fix)
        del draft.options["opt_level"]
    if draft.config is None or not is_vaiml_config(draft.config):
        return
    needs_targets = not is_older(setting.build, "1.6")
    npu = npu_facts(setting.device)
    code = npu.vaiml_code if npu is not None else ""
    found = list(check_config(draft.config, needs_targets=needs_targets, device_code=code))
    draft.problems.extend(found)
    if found:
        draft.config = corrected_config(draft.config, needs_targets=needs_targets, device_code=code)


def _environment(draft: Draft, setting: Setting) -> None:
    for name, advice in REMOVED_VARIABLES.items():
        if name in draft.environment and not is_older(setting.build, VARIABLES_REMOVED_IN):
            what = f"`{name}` is not read since {VARIABLES_REMOVED_IN}"
            draft.note("vitisai.variable-gone", "error", name, what, advice)
            del draft.environment[name]
    for name, advice in HIDING_VARIABLES.items():
        if draft.environment.get(name, "0") != "0":
            draft.note("vitisai.variable-hides", "warning", name, advice)


def _providers(draft: Draft, setting: Setting) -> None:
    if draft.providers and "CPUExecutionProvider" not in draft.providers:
        draft.note(
            "vitisai.no-cpu-provider",
            "note",
            "",
            "the list of providers has no `CPUExecutionProvider`: what the NPU does not take then"
            " runs there without being asked for",
            "list it last, and compare `session.get_providers()` with the list afterwards",
        )
        draft.providers = (*draft.providers, "CPUExecutionProvider")


_RULES: tuple[Rule, ...] = (
    _names,
    _values,
    _device,
    _target,
    _binary,
    _settings,
    _configuration,
    _cache,
    _analyzer,
    _environment,
    _providers,
)
