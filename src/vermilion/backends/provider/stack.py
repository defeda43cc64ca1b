"""What a provider's parts depend on: its version, the driver, the device.

A provider does not notice that a part was compiled by another version of itself, or for another
driver or device; it computes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from vermilion.backends.base import Availability
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.targets.target import Target


class Stack(Protocol):
    """Everything below a compiled part that can make it stale."""

    def as_details(self) -> dict[str, str]:
        """Return what is kept with a compiled part and compared when it is loaded."""


Found = TypeVar("Found", bound=Stack)


class Stacks(Generic[Found]):
    """The stacks of this machine, by target; each is looked for when it is first asked for.

    `words` says for people what each of the details is.
    """

    def __init__(
        self, find: Callable[[Target], Found | Availability], words: Mapping[str, str]
    ) -> None:
        self._find = find
        self._words = words
        self._found: dict[str, Found | Availability] = {}

    def available(self, target: Target) -> Availability:
        """Say whether there is one; the reason where there is not."""
        stack = self._stack(target)
        return stack if isinstance(stack, Availability) else Availability(usable=True)

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return what a compiled part depends on; empty where nothing is here."""
        stack = self._stack(target)
        return {} if isinstance(stack, Availability) else stack.as_details()

    def needed(self, target: Target) -> Found:
        """Return the stack. Raises: DeviceError with the reason where there is none."""
        stack = self._stack(target)
        if isinstance(stack, Availability):
            raise DeviceError(stack.reason, where=target.name, hint=stack.hint)
        return stack

    def same(self, target: Target, details: Mapping[str, str]) -> Found:
        """Return the stack that a part with these `details` was compiled with.

        Raises: ArtifactError where it has changed; DeviceError where it is gone.
        """
        stack = self.needed(target)
        changed = differences(self._words, details, stack.as_details())
        if changed:
            raise ArtifactError(
                f"the part was compiled for another machine: {'; '.join(changed)}",
                hint="compile the model again: the provider itself would not notice",
            )
        return stack

    def _stack(self, target: Target) -> Found | Availability:
        if target.name not in self._found:
            self._found[target.name] = self._find(target)
        return self._found[target.name]


def differences(
    words: Mapping[str, str], then: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """Say what has changed since a part was compiled, of all that has a word."""
    return [
        f"{word} was {then[key] or 'unknown'} and is {now.get(key) or 'unknown'}"
        for key, word in words.items()
        if key in then and then[key] != now.get(key, "")
    ]
