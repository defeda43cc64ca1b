"""What a forked process makes anew: locks and threads of others were copied as they stood.

Only the thread that forks is in the new process. A lock that another one held is held there for
ever, and threads that were to help are not there.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """Something with locks or threads of its own."""

    def after_fork(self) -> None:
        """Make them anew. Called in the new process, which has one thread then."""


_owners: weakref.WeakSet[Forked] = weakref.WeakSet()


def renew_after_fork(owner: Forked) -> None:
    """Call the owner's `after_fork` in each process that is forked while the owner lives."""
    _owners.add(owner)


def abandon(thing: object) -> None:
    """Never destroy a thing that was copied by a fork.

    Its destructor would wait for threads that are not in this process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _renew() -> None:
    for owner in list(_owners):
        owner.after_fork()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_renew)
