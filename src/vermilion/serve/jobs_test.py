"""Requests that wait: which run together, which are dropped, and when there are too many."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

import pytest

from vermilion.serve.jobs import Job, JobQueue
from vermilion.serve.refusals import NotReadyError, QueueFullError

PATIENCE_S = 60.0


def job(rows: int = 1, form: Hashable | None = "a", left_s: float = 60.0) -> Job:
    return Job({}, rows, form, time.monotonic() + left_s)


def queue(*, waiting: int = 10, rows: int = 4, delay_s: float = 0.0) -> JobQueue:
    return JobQueue(most_waiting=waiting, most_rows=rows, delay_s=delay_s)


def test_jobs_of_one_form_run_together() -> None:
    jobs = [job(), job(form="b"), job(2), job(form="b"), job(2)]
    waiting = queue()
    for one in jobs:
        waiting.put(one)
    assert waiting.take(PATIENCE_S) == [jobs[0], jobs[2]]  # a fifth row is too much
    assert waiting.take(PATIENCE_S) == [jobs[1], jobs[3]]
    assert waiting.take(PATIENCE_S) == [jobs[4]]


def test_who_is_tried_again_runs_alone() -> None:
    waiting = queue()
    first, second = job(), job()
    waiting.put(first)
    waiting.put(second)
    waiting.put_back(waiting.take(PATIENCE_S) or [])
    waiting.put(job())
    assert waiting.take(PATIENCE_S) == [first]
    assert waiting.take(PATIENCE_S) == [second]
    assert len(waiting.take(PATIENCE_S) or []) == 1
    alone = job(form=None)
    waiting.put(alone)
    waiting.put(job(form=None))
    assert waiting.take(PATIENCE_S) == [alone]


def test_too_many_are_told_when_to_come_back() -> None:
    waiting = queue(waiting=2, rows=1)
    waiting.note_run(3.0)
    gone, late = job(), job(left_s=-1.0)
    waiting.put(gone)
    waiting.put(late)
    gone.done.cancel()
    waiting.put(job())  # nobody waits for the others
    waiting.put(job())
    with pytest.raises(QueueFullError) as raised:
        waiting.put(job())
    assert raised.value.retry_after_s == 6
    assert late.done.cancelled()


def test_a_job_waits_for_others_only_so_long() -> None:
    waiting = queue(delay_s=0.05, rows=2)
    first = job()
    waiting.put(first)
    begin = time.monotonic()
    assert waiting.take(PATIENCE_S) == [first]
    assert time.monotonic() - begin > 0.02
    waiting = queue(delay_s=60.0, rows=2)  # a full batch waits no longer
    waiting.put(job())
    timer = threading.Timer(0.01, waiting.put, [job()])
    timer.start()
    assert len(waiting.take(PATIENCE_S) or []) == 2
    timer.join()


def test_a_closed_queue_takes_nothing() -> None:
    waiting = queue()
    left = job()
    waiting.put(left)
    assert waiting.close() == [left]
    assert waiting.take(PATIENCE_S) is None
    with pytest.raises(NotReadyError):
        waiting.put(job())


def test_who_has_nothing_to_do_is_told_after_a_while() -> None:
    waiting = queue()
    begin = time.monotonic()
    assert waiting.take(0.02) == []
    assert 0.01 < time.monotonic() - begin < 30
    one = job()
    timer = threading.Timer(0.02, waiting.put, [one])
    timer.start()
    assert waiting.take(PATIENCE_S) == [one]
    timer.join()


def test_who_has_left_is_refused_without_a_word() -> None:
    gone = job()
    gone.done.cancel()
    gone.refuse(NotReadyError("the model was unloaded"))
    answered = job()
    answered.answer({})
    answered.refuse(NotReadyError("the model was unloaded"))
    assert answered.done.result() == {}
