from __future__ import annotations

import threading

from vermilion.batch.job import Range
from vermilion.batch.schedule import ATTEMPTS, Work


def work(*ranges: Range, proof: Range | None = None) -> tuple[Work, dict[int, str]]:
    failed: dict[int, str] = {}
    total = sum(map(len, ranges))
    return Work(ranges, total, failed.__setitem__, proof=proof), failed


def test_ranges_come_in_order_and_then_nothing_does() -> None:
    queue, _ = work(Range(0, 4), Range(4, 6))
    for expected in (Range(0, 4), Range(4, 6)):
        assert queue.take() == expected
        queue.done(expected)
    assert queue.take() is None
    assert queue.is_finished
    assert queue.status().done == 6


def test_a_device_gets_its_next_range_early_unless_others_would_starve() -> None:
    ranges = [Range(at, at + 1) for at in range(4)]
    queue = Work(ranges, 4, lambda at, why: None, devices=2)
    assert queue.take() == ranges[0]
    assert queue.take_ahead() == ranges[1]
    assert queue.take_ahead() == ranges[2], "two are left, one for each"
    assert queue.take_ahead() is None, "the last one is the other device's"
    queue.give_back(ranges[2])
    assert queue.take() == ranges[2]
    queue.stop()
    assert queue.take_ahead() is None


def test_a_poisoned_input_is_found_by_halving_and_the_rest_is_done() -> None:
    queue, failed = work(Range(0, 8), Range(8, 16))
    computed: list[Range] = []
    deaths = 0
    while (one := queue.take()) is not None:
        if one.start <= 5 < one.stop:
            deaths += 1
            queue.blame(one, "died")
        else:
            computed.append(one)
            queue.done(one)
    assert failed == {5: "died"}
    assert deaths == 3 + ATTEMPTS  # 8, 4, 2, and the lone one as often as it is tried
    assert sorted(at for one in computed for at in range(one.start, one.stop)) == [
        at for at in range(16) if at != 5
    ]
    assert queue.is_finished
    assert queue.status().failed == 1


def test_what_is_suspect_comes_after_what_is_not() -> None:
    queue, _ = work(Range(0, 2), Range(2, 4))
    first = queue.take()
    assert first is not None
    queue.blame(first, "died")
    assert queue.take() == Range(2, 4)


def test_what_is_given_back_is_next_and_not_blamed() -> None:
    queue, failed = work(Range(0, 1), Range(1, 2))
    for _ in range(2 * ATTEMPTS):
        one = queue.take()
        assert one == Range(0, 1)
        queue.give_back(one)
    assert not failed


def test_who_takes_waits_for_what_may_come_back() -> None:
    queue, _ = work(Range(0, 1))
    one = queue.take()
    assert one is not None
    taken: list[Range | None] = []
    other = threading.Thread(target=lambda: taken.append(queue.take()))
    other.start()
    queue.give_back(one)
    other.join(timeout=30)
    assert taken == [one]


def test_stopping_wakes_who_waits() -> None:
    queue, _ = work(Range(0, 1))
    queue.take()
    taken: list[Range | None] = [Range(7, 8)]
    other = threading.Thread(target=lambda: taken.append(queue.take()))
    other.start()
    queue.stop("enough")
    queue.stop("later")
    other.join(timeout=30)
    assert taken[-1] is None
    assert (queue.reason, queue.is_finished) == ("enough", False)


def test_a_range_of_which_nothing_could_be_read_proves_nothing() -> None:
    queue, _ = work(Range(0, 2), Range(2, 4))
    for failures in (2, 1):
        one = queue.take()
        assert one is not None
        queue.done(one, failures)
    assert queue.proof == Range(2, 4)
