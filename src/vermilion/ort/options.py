"""`SessionOptions` and `RunOptions`: ONNX Runtime's own, which also remember what was added.

Its classes take entries, dimensions and weights without a way to ask for them again.
"""

from __future__ import annotations

from typing import Any

import onnxruntime as ort


class SessionOptions(ort.SessionOptions):  # type: ignore[misc]  # it has no types
    """Options of a session, for ours and for ONNX Runtime's alike."""

    # What is no option cannot be set: AttributeError, as with ONNX Runtime's own.
    __slots__ = ("called", "entries", "sizes_by_denotation", "sizes_by_name")

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, str] = {}
        self.sizes_by_name: dict[str, int] = {}
        self.sizes_by_denotation: dict[str, int] = {}
        self.called: list[str] = []  # methods whose effect only ONNX Runtime has

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Add an entry to the configuration."""
        super().add_session_config_entry(key, value)
        self.entries[key] = value

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a dynamic dimension, by its name."""
        super().add_free_dimension_override_by_name(name, size)
        self.sizes_by_name[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix dynamic dimensions, by what they denote."""
        super().add_free_dimension_override_by_denotation(denotation, size)
        self.sizes_by_denotation[denotation] = int(size)

    def add_initializer(self, *arguments: Any) -> None:
        """Replace a weight."""
        super().add_initializer(*arguments)
        self.called.append("add_initializer")

    def add_external_initializers(self, *arguments: Any) -> None:
        """Replace weights."""
        super().add_external_initializers(*arguments)
        self.called.append("add_external_initializers")

    def add_external_initializers_from_files_in_memory(self, *arguments: Any) -> None:
        """Take the files of external weights from memory."""
        super().add_external_initializers_from_files_in_memory(*arguments)
        self.called.append("add_external_initializers_from_files_in_memory")

    def register_custom_ops_library(self, *arguments: Any) -> None:
        """Load a library of operators."""
        super().register_custom_ops_library(*arguments)
        self.called.append("register_custom_ops_library")

    def add_provider(self, *arguments: Any) -> None:
        """Choose a provider."""
        super().add_provider(*arguments)
        self.called.append("add_provider")

    def add_provider_for_devices(self, *arguments: Any) -> None:
        """Choose a provider's devices."""
        super().add_provider_for_devices(*arguments)
        self.called.append("add_provider_for_devices")

    def set_provider_selection_policy(self, *arguments: Any) -> None:
        """Choose providers by a policy."""
        super().set_provider_selection_policy(*arguments)
        self.called.append("set_provider_selection_policy")

    def set_provider_selection_policy_delegate(self, *arguments: Any) -> None:
        """Choose providers by a function."""
        super().set_provider_selection_policy_delegate(*arguments)
        self.called.append("set_provider_selection_policy_delegate")

    def set_ep_context_data_read_func(self, *arguments: Any, **named: Any) -> None:
        """Say what reads the data of compiled nodes."""
        super().set_ep_context_data_read_func(*arguments, **named)
        self.called.append("set_ep_context_data_read_func")

    def clear_ep_context_data_read_func(self) -> None:
        """Forget what reads the data of compiled nodes."""
        super().clear_ep_context_data_read_func()
        self.called = [name for name in self.called if name != "set_ep_context_data_read_func"]

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Say that loading is to end, or is not."""
        super().set_load_cancellation_flag(is_cancelled)
        self.called = [name for name in self.called if name != "set_load_cancellation_flag"]
        self.called += ["set_load_cancellation_flag"] if is_cancelled else []


class RunOptions(ort.RunOptions):  # type: ignore[misc]  # it has no types
    """Options of a run, for ours and for ONNX Runtime's alike."""

    __slots__ = ("called", "entries")

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, str] = {}
        self.called: list[str] = []

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Add an entry to the configuration."""
        super().add_run_config_entry(key, value)
        self.entries[key] = value

    def add_active_adapter(self, *arguments: Any) -> None:
        """Compute with an adapter's weights."""
        super().add_active_adapter(*arguments)
        self.called.append("add_active_adapter")
