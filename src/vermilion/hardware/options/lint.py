"""The linter: option sets, wherever they were written, against the table of their provider.

What it corrects is given as text to paste.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vermilion.hardware.options.gpu import AMDGPU, CUDA, MIGRAPHX, ROCM, gpu_table
from vermilion.hardware.options.gpu_rules import apply_gpu_rules
from vermilion.hardware.options.option import (
    UNKNOWN_CLOSE,
    UNKNOWN_OPEN,
    Draft,
    Linted,
    OptionSet,
    OptionTable,
    Setting,
    is_unknown,
)
from vermilion.hardware.options.vitisai import NEWEST, PROVIDER, vitisai_table
from vermilion.hardware.options.vitisai_rules import apply_vitisai_rules
from vermilion.hardware.targets.npu import TARGETS, npu_facts

# Windows' spelling, which Python puts in for nobody.
_VARIABLE = re.compile(r"%[A-Za-z_][A-Za-z0-9_]{0,80}%")
_SHORT_NAMES: Mapping[str, str] = {
    "amdgpu": AMDGPU,
    "cpu": "CPUExecutionProvider",
    "cuda": CUDA,
    "dml": "DmlExecutionProvider",
    "migraphx": MIGRAPHX,
    "rocm": ROCM,
    "vitisai": PROVIDER,
}
_KNOWN = (PROVIDER, MIGRAPHX, AMDGPU, ROCM)
_OTHERS = (
    "AzureExecutionProvider",
    "CPUExecutionProvider",
    "CUDAExecutionProvider",
    "DmlExecutionProvider",
    "OpenVINOExecutionProvider",
    "QNNExecutionProvider",
    "TensorrtExecutionProvider",
    "WebGpuExecutionProvider",
    "XnnpackExecutionProvider",
)
_RULES: Mapping[str, Callable[[Draft, Setting], None]] = {
    PROVIDER: apply_vitisai_rules,
    MIGRAPHX: apply_gpu_rules,
    AMDGPU: apply_gpu_rules,
    ROCM: apply_gpu_rules,
}


def lint(given: OptionSet, setting: Setting) -> Linted:
    """Return what is wrong with an option set, and its corrected form.

    An empty `build` in `setting` is the newest release, or the provider built into ONNX Runtime.
    """
    draft = Draft(
        provider=full_name(given.provider),
        options=dict(given.options),
        providers=given.providers,
        environment=dict(given.environment),
        config=dict(given.config) if given.config is not None else None,
    )
    _provider_name(draft, given)
    _plain_values(draft, given)
    rules = _RULES.get(draft.provider)
    table = option_table(draft.provider, setting.build)
    if rules is not None:
        rules(draft, setting)
    corrected = replace(
        given,
        provider=draft.provider,
        options=draft.options,
        not_text={},
        providers=draft.providers,
        environment=draft.environment,
        config=draft.config,
    )
    return Linted(given, setting, table, tuple(draft.problems), corrected)


def lint_all(given: Sequence[OptionSet], setting: Setting) -> list[Linted]:
    """Return what is wrong with the option sets of one file.

    Several sets of one call are its branches: which of them is for which NPU, only running the
    file tells. The one that is least wrong for the device that was asked for is taken to be its;
    each other one is held against the NPU that it fits best.
    """
    asked = [lint(one, setting) for one in given]
    if npu_facts(setting.device) is None:
        return asked
    calls: dict[tuple[str, str], list[int]] = {}
    for at, one in enumerate(given):
        calls.setdefault((one.where, full_name(one.provider)), []).append(at)
    for (_, provider), places in calls.items():
        if provider != PROVIDER or len(places) == 1:
            continue
        own = min(places, key=lambda at: asked[at].errors)
        for at in places:
            if at != own and asked[at].errors:
                asked[at] = _best_fit(given[at], setting, asked[at])
    return asked


def _best_fit(given: OptionSet, setting: Setting, asked: Linted) -> Linted:
    others = [replace(setting, device=target.name) for target in TARGETS]
    return min([asked, *(lint(given, other) for other in others)], key=lambda one: one.errors)


def option_table(provider: str, build: str) -> OptionTable | None:
    """Return what a build of a provider takes, None for a provider that has no table here."""
    if provider == PROVIDER:
        return vitisai_table(build or NEWEST)
    return gpu_table(provider, build)


def full_name(written: str) -> str:
    """Return ONNX Runtime's name of a provider: `VitisAI` → `VitisAIExecutionProvider`."""
    return _SHORT_NAMES.get(written.strip().lower(), written.strip())


def is_amd(provider: str) -> bool:
    """Say whether there is a table for this provider, or a name near one that has."""
    name = full_name(provider)
    return name in _KNOWN or bool(_meant(name))


def _meant(name: str) -> str:
    """Return the provider that a misspelt name means, empty where it is a real one or like none."""
    if name in _KNOWN or name in _OTHERS:
        return ""
    close = difflib.get_close_matches(name, [*_KNOWN, *_OTHERS], n=1, cutoff=0.85)
    return close[0] if close and close[0] in _KNOWN else ""


def _provider_name(draft: Draft, given: OptionSet) -> None:
    meant = _meant(draft.provider)
    if not meant:
        return
    what = f"no provider is called `{given.provider}`; ONNX Runtime would run on the CPU"
    draft.note("provider.unknown", "error", "", what, f"write `{meant}`")
    draft.providers = tuple(meant if p == draft.provider else p for p in draft.providers)
    draft.provider = meant


def _plain_values(draft: Draft, given: OptionSet) -> None:
    """Make text of what is none: ONNX Runtime takes strings, and None crashes some providers."""
    for name, kind in given.not_text.items():
        value = draft.options.get(name, "")
        if kind == "NoneType":
            what = f"`{name}` is None; some providers crash on it"
            draft.note("value.none", "error", name, what, "leave it out")
            del draft.options[name]
            continue
        text = {"True": "1", "False": "0"}.get(value, value) if kind == "bool" else value
        what = f"the value of `{name}` is {'an' if kind == 'int' else 'a'} {kind}, not text"
        draft.note("value.not-text", "warning", name, what, f'write "{text}"')
        draft.options[name] = text


def corrected_text(linted: Linted, *, as_json: bool) -> str:
    """Return the corrected options as JSON, or as the lines of Python that make the session."""
    options = linted.corrected
    if as_json:
        data: dict[str, object] = {
            "provider": options.provider,
            "options": dict(options.options),
        }
        if options.config is not None:
            data["config"] = dict(options.config)
        return json.dumps(data, indent=2)
    providers = options.providers or (options.provider, "CPUExecutionProvider")
    values = [*options.environment.values(), *options.options.values()]
    needs_os = bool(options.environment) or any(_VARIABLE.search(value) for value in values)
    lines = ["import os", ""] if needs_os else []
    lines += [f"os.environ[{k!r}] = {_python(v)}" for k, v in options.environment.items()]
    lines.append(f"providers = [{', '.join(json.dumps(name) for name in providers)}]")
    lines.append("provider_options = [")
    for name in providers:
        mine: Mapping[str, str] = options.options if name == options.provider else {}
        if not mine:
            lines.append("    {},")
            continue
        lines.append("    {")
        lines += [f"        {json.dumps(k)}: {_python(v)}," for k, v in mine.items()]
        lines.append("    },")
    lines.append("]")
    if options.config is not None and options.config != linted.given.config:
        lines += ["", "# the file that `config_file` names:", json.dumps(options.config, indent=2)]
    return "\n".join(lines)


def _python(value: str) -> str:
    if is_unknown(value):
        return value.removeprefix(UNKNOWN_OPEN).removesuffix(UNKNOWN_CLOSE)
    text = f'r"{value}"' if "\\" in value and '"' not in value else json.dumps(value)
    return f"os.path.expandvars({text})" if _VARIABLE.search(value) else text
