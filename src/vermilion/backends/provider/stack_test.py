from __future__ import annotations

from dataclasses import dataclass

import pytest

from vermilion.backends.base import Availability
from vermilion.backends.provider.stack import Stacks
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.targets.find import find_target

STRIX, PHOENIX = find_target("strix"), find_target("phoenix")
WORDS = {"driver": "the driver"}


@dataclass(frozen=True)
class Driver:
    version: str

    def as_details(self) -> dict[str, str]:
        return {"driver": self.version, "folder": "anything"}


def stacks(asked: list[str]) -> Stacks[Driver]:
    def find(target: object) -> Driver | Availability:
        name = str(getattr(target, "name", ""))
        asked.append(name)
        return Driver("2") if name == "strix" else Availability(False, "no such NPU", "buy one")

    return Stacks(find, WORDS)


def test_a_target_is_looked_for_once_and_only_when_asked_for() -> None:
    asked: list[str] = []
    here = stacks(asked)
    assert asked == []
    assert here.available(STRIX).usable
    assert here.versions(STRIX) == {"driver": "2", "folder": "anything"}
    assert here.needed(STRIX) == Driver("2")
    assert asked == ["strix"]


def test_what_is_not_there_has_its_reason() -> None:
    here = stacks([])
    assert here.available(PHOENIX).reason == "no such NPU"
    assert here.versions(PHOENIX) == {}
    with pytest.raises(DeviceError, match="no such NPU") as raised:
        here.needed(PHOENIX)
    assert (raised.value.where, raised.value.hint) == ("phoenix", "buy one")
    with pytest.raises(DeviceError):
        here.same(PHOENIX, {"driver": "2"})


def test_a_part_of_another_driver_is_refused_and_what_has_no_word_is_not_compared() -> None:
    here = stacks([])
    assert here.same(STRIX, {"driver": "2", "folder": "elsewhere"}) == Driver("2")
    assert here.same(STRIX, {}) == Driver("2"), "an older bundle kept nothing"
    with pytest.raises(ArtifactError, match="the driver was 1 and is 2"):
        here.same(STRIX, {"driver": "1"})
    with pytest.raises(ArtifactError, match="the driver was unknown and is 2"):
        here.same(STRIX, {"driver": ""})
