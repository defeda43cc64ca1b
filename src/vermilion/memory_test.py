from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest

from vermilion.memory import no_collection, old_objects_left_alone, peak_rss_mb


def test_the_peak_is_in_megabytes_and_never_falls() -> None:
    before = peak_rss_mb()
    assert 20 < before < 50_000, "a Python process with numpy, on any machine"
    size_mb = int(before) + 100
    block = np.ones(size_mb * 1_000_000, np.uint8)
    during = peak_rss_mb()
    assert during > block.nbytes / 1e6
    del block
    # Linux counts pages per thread and adds up now and then: the mark may move by some of them.
    assert peak_rss_mb() > 0.98 * during


class Knot:
    """Garbage that only the cyclic collector finds."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def nothing_frozen() -> None:
    """Collecting the tests froze what was there."""
    gc.unfreeze()


@pytest.mark.usefixtures("nothing_frozen")
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


@pytest.mark.usefixtures("nothing_frozen")
def test_an_error_gives_the_objects_back() -> None:
    with pytest.raises(ValueError, match="wrong"), old_objects_left_alone():
        raise ValueError("wrong")
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_within_collects() -> None:
    with no_collection():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 3)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_nothing_is_collected_within_and_all_of_it_after() -> None:
    with no_collection():
        seen = weakref.ref(Knot())
        _many = [[] for _ in range(5 * gc.get_threshold()[0])]  # type: ignore[var-annotated]
        assert seen() is not None
        with no_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.collect()
    assert seen() is None
