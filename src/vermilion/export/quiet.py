"""Keeping PyTorch's exporters quiet: they print, log and warn of their own affairs."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator

_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_STDOUT = 1


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Keep what is printed on stdout, logged or warned from the user; give the warnings."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with (
        warnings.catch_warnings(record=True) as heard,
        contextlib.redirect_stdout(io.StringIO()),
        _native_stdout_dropped(),
    ):
        warnings.simplefilter("always")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            yield heard
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def _native_stdout_dropped() -> Iterator[None]:
    """Drop what C++ prints: PyTorch 2.13 turns on its log of whole graphs and never off.

    Source: `setup_onnx_logging` in torch/onnx/_internal/torchscript_exporter/utils.py tests a
    function where it means to call it.
    """
    _flush_native()
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # there is no stdout to keep clean
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)
    try:
        yield
    finally:
        _flush_native()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush_native() -> None:
    """Let C's buffers out while the file descriptor still leads where they belong."""
    ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None).fflush(None)
