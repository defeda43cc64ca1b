from __future__ import annotations

import gc
import weakref

import pytest

from vermilion.quantize.old_objects import old_objects_left_alone


class Knot:
    """Garbage that only the cyclic collector finds."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> None:
    """Collecting the tests froze what was there."""
    gc.unfreeze()


def test_old_garbage_waits_and_new_garbage_does_not() -> None:
    old = Knot()
    seen = weakref.ref(old)
    with old_objects_left_alone():
        del old
        new = Knot()
        also_seen = weakref.ref(new)
        del new
        gc.collect()
        assert also_seen() is None
        assert seen() is not None
    gc.collect()
    assert seen() is None


def test_an_error_gives_the_objects_back() -> None:
    with pytest.raises(ValueError, match="wrong"), old_objects_left_alone():
        raise ValueError("wrong")
    assert gc.get_freeze_count() == 0


def test_what_a_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with old_objects_left_alone():
            pass
        # Some of what is frozen is let go meanwhile, by others.
        assert gc.get_freeze_count() > 0.9 * before
    finally:
        gc.unfreeze()
