"""A run launcher that detects when the process of a run has died.

With Dagster's default launcher, such a run stays STARTED and blocks its pool (dagster#4319). This
launcher lets the daemon's run monitoring check the process, whose ID is in one of the first events.
`dagster_home/dagster.yaml` selects it.
"""

import psutil
from dagster import DagsterEventType, DagsterRun, DefaultRunLauncher

# Dagster has no public import of these types of the launcher's interface.
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus


class WatchfulRunLauncher(DefaultRunLauncher):
    """Dagster's default run launcher, with a health check of the run's process."""

    supports_check_run_worker_health = True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return the status of a run's process: running or failed."""
        for entry in self._instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT):
            if entry.dagster_event is None:
                continue
            value = entry.dagster_event.engine_event_data.metadata.get("pid")
            if value is not None:
                pid = int(str(value.value))
                alive = is_alive(pid, entry.timestamp)
                status = WorkerStatus.RUNNING if alive else WorkerStatus.FAILED
                message = None if alive else f"process {pid} of the run has died"
                return CheckRunHealthResult(status, message, run_worker_id=str(pid))
        return CheckRunHealthResult(
            WorkerStatus.RUNNING, "the process of the run has not started yet"
        )


def is_alive(pid: int, before: float) -> bool:
    """Return whether `pid` is a running process that started before the Unix time `before`."""
    try:
        process = psutil.Process(pid)
        return bool(
            process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= before + 1.0
        )
    except psutil.NoSuchProcess:
        return False
