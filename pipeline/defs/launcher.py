"""Dagster's default run launcher, and one thing more: it notices a run worker that died.

The default launcher leaves a run STARTED for ever when its process is killed (power cut, out of memory), which also
blocks its pool (dagster#4319). With this one, the daemon's run monitoring asks for the worker's process id, which the
worker wrote into its first event. The process is asked, not the code server: a reload would mark healthy runs failed.
Name it in dagster.yaml, as dagster_home/dagster.yaml does.
"""

import re

import psutil
from dagster import DagsterEventType, DagsterRun
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")


class WatchfulRunLauncher(DefaultRunLauncher):
    """Launch runs as the default launcher does, and report dead run workers."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Tell the daemon that `check_run_worker_health` may be asked."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Say whether the process of `run` lives: there, not a zombie, and no newer than the event that names it."""
        for record in self._instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT):
            found = STARTED.search(record.user_message or "") or STARTED.search(record.message or "")
            if found:
                pid = int(found[1])
                if alive(pid, record.timestamp):
                    return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=str(pid))
                return CheckRunHealthResult(WorkerStatus.FAILED, f"process {pid} of the run is gone")
        return CheckRunHealthResult(WorkerStatus.RUNNING, "the run has named no process yet")


def alive(pid: int, before: float) -> bool:
    """Return whether `pid` is a live process that was there at the time `before` (seconds since 1970).

    One that may not be looked at is taken for it: a healthy run is not failed on a guess.
    """
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= before + 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
