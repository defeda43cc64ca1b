"""The corrected form of an option set, as text to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vermilion.hardware.options.option import UNKNOWN_CLOSE, UNKNOWN_OPEN, Linted, is_unknown


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
    lines = [f"os.environ[{k!r}] = {_python(v)}" for k, v in options.environment.items()]
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
    return f'r"{value}"' if "\\" in value and '"' not in value else json.dumps(value)
