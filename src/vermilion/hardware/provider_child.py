"""What runs in the child process that loads one execution provider; see `providers.py`."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# ONNX Runtime puts its source line and status code before what a reader needs.
_PREAMBLE = re.compile(r"^.*?\[ONNXRuntimeError\] : \d+ : \w+ : ", re.DOTALL)


def main() -> None:
    """Answer the question in the first argument, as JSON in the file that the second names."""
    question, answer_path = json.loads(sys.argv[1]), Path(sys.argv[2])
    aside = answer_path.with_suffix(".part")
    aside.write_text(json.dumps(answer(question)), encoding="utf-8")
    aside.replace(answer_path)  # a crash leaves no answer rather than half of one


def answer(question: Mapping[str, str]) -> dict[str, object]:
    """Return `providers`, or `loads` with the `reason` where it is false."""
    try:
        import onnxruntime
    except ImportError as error:
        return {"loads": False, "reason": f"ONNX Runtime cannot be imported: {error}"}
    if question["ask"] == "list":
        return {"providers": list(onnxruntime.get_available_providers())}
    try:
        if question["ask"] == "built in":
            return _load_built_in(onnxruntime, question["provider"])
        return _load_plugin(onnxruntime, question)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        return {"loads": False, "reason": plain_reason(str(error))}


def plain_reason(text: str) -> str:
    """Strip ONNX Runtime's preamble and give the first line."""
    lines = _PREAMBLE.sub("", text).strip().splitlines()
    return lines[0].strip() if lines else "no reason given"


def _load_built_in(onnxruntime: Any, provider: str) -> dict[str, object]:
    # Naming a provider in session options loads its library and raises where that fails; a session
    # would only print the failure and run on the CPU.
    onnxruntime.SessionOptions().add_provider(provider, {})
    return {"loads": True}


def _load_plugin(onnxruntime: Any, question: Mapping[str, str]) -> dict[str, object]:
    library = question.get("library", "")
    if "package" in question:
        library = str(importlib.import_module(question["package"]).get_library_path())
    provider = question["provider"]
    try:
        onnxruntime.register_execution_provider_library(provider, library)
    except Exception as error:  # as above
        return {"loads": False, "reason": plain_reason(str(error)), "library": library}
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == provider]
    if not devices:
        reason = "its library loads, and it finds no device that it supports"
        return {"loads": False, "reason": reason, "library": library}
    return {"loads": True, "library": library}
