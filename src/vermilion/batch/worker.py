"""A local worker (`vermilion.process`): opens the job's program, then computes ranges on request.

It is started while the parent plans the job: what every job of a compiled model needs is loaded
then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vermilion.backends import native
from vermilion.batch import source
from vermilion.batch.compute import Computer, open_program
from vermilion.batch.job import BatchError, Job, Range
from vermilion.batch.journal import write_range
from vermilion.memory import peak_rss_mb
from vermilion.process.worker import print_to
from vermilion.runtime import session

del native, source, session  # only loaded


class Worker:
    """What is open in this process."""

    def open(self, folder: str, log: str, threads: int, device: int) -> dict[str, Any]:
        """Open the job's program; what anything prints goes to the job's log from now on."""
        print_to(Path(log))
        self._folder = Path(folder)
        job = Job.read(self._folder)
        opened = open_program(job.program, job.outputs, threads, device)
        self._computer = Computer(job, opened)
        return {"runs_on": opened.runs_on, "notes": list(opened.notes)}

    def compute(self, start: int, stop: int, keep: bool) -> dict[str, Any]:
        """Compute a range; its file is in its place afterwards, unless it is not to be kept.

        Raises: BatchError where no other range and no other worker will fare better.
        """
        computed, spent = self._computer.compute(Range(start, stop))
        try:
            if keep:
                write_range(self._folder, computed)
        except OSError as error:  # a full disk is no input's fault
            raise BatchError(str(error)) from error
        return {
            "failed": {str(at): why for at, why in computed.failed.items()},
            "read_s": spent.read_s,
            "run_s": spent.run_s,
            "peak_rss_mb": peak_rss_mb(),
        }
