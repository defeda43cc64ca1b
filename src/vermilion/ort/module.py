"""Functions of ONNX Runtime's module that concern our engine too."""

from __future__ import annotations

import logging

import onnxruntime as ort

from vermilion.ort.providers import OURS

# ONNX Runtime's severities, verbose to fatal, as Python's.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_available_providers() -> list[str]:
    """Return ours before those of ONNX Runtime's build, in order of precedence."""
    # A plugin that is registered in this process is one of ONNX Runtime's, under the same name.
    return [OURS, *(name for name in ort.get_available_providers() if name != OURS)]


def set_default_logger_severity(severity: int) -> None:
    """Set which messages are heard, ONNX Runtime's and ours: 0 all, 2 warnings, 4 fatal errors."""
    ort.set_default_logger_severity(severity)
    logging.getLogger("vermilion").setLevel(_LEVELS[severity])
