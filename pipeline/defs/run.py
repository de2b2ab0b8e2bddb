"""`python -m pipeline.defs.run`, which `make run` calls: materialize every asset from one dump and print the results.

The runs are stored in the instance at DAGSTER_HOME (`dagster_home/` if unset), so that the UI shows them later.
"""

import argparse
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import dagster as dg

import pipeline
from engine.errors import UserError
from model.training.config import DEFAULT_PRESET
from pipeline.cli.endings import describe_first_run
from pipeline.defs.pages.metadata import FIGURES
from pipeline.defs.resources import SAMPLE, Datasets

SECONDS = 10.0
"""Interval of the printed observations."""


def main() -> int:
    """Run the jobs; the exit status is 0 if every asset was materialized and no blocking check failed."""
    parser = argparse.ArgumentParser(description="Materialize all assets, from dump to accuracy report, of one dump.")
    parser.add_argument(
        "--dump", default=SAMPLE, help="name of a file in datasets/dumps/ without extension, or `sample`"
    )
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="network to train")
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    options = parser.parse_args()
    os.environ.setdefault("DAGSTER_HOME", str(Path(pipeline.__file__).resolve().parents[1] / "dagster_home"))
    from pipeline.defs.jobs import register

    with dg.DagsterInstance.get() as instance:
        register(instance, Datasets())
        try:
            Datasets().source(options.dump)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        only = {"positions": [options.dump]}  # not the other datasets
        train = {"train": {"minutes": options.minutes}, "preset": options.preset}
        ops = {"training_set": only, "checkpoint": train, "accuracy_report": only}
        result = run_job(instance, "build_positions", {}, options.dump)
        if result.success:
            result = run_job(instance, "train", ops)
        if result.success:
            report = result.asset_materializations_for_node("accuracy_report")[0]
            found = {name: value.value for name, value in report.metadata.items()}
            figures = {name: found[name] for name in FIGURES if name in found}
            folder = Path(str(found["path"])) / options.dump
            checkpoint = Path(str(found["checkpoint"]))
            _print("\n" + describe_first_run(figures, options.dump == SAMPLE, folder, checkpoint))
    return 0 if result.success else 1


def run_job(
    instance: dg.DagsterInstance, job: str, ops: dict[str, Any], partition: str | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job in this process, printing its progress; raises KeyboardInterrupt if Ctrl-C ended a step."""
    from pipeline.defs.loading import load

    run_id = str(uuid.uuid4())
    instance.add_event_listener(run_id, Printer())
    config = {"ops": {name: {"config": values} for name, values in ops.items()}}
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    result = (
        load()
        .resolve_job_def(job)
        .execute_in_process(
            config | quiet, instance=instance, run_id=run_id, partition_key=partition, raise_on_error=False
        )
    )
    interrupted = dg.DagsterExecutionInterruptedError.__name__
    if any(interrupted in describe_failure(event) for event in result.get_step_failure_events()):
        raise KeyboardInterrupt
    return result


class Printer:
    """Prints the steps, failures and checks of a run, and an observation every SECONDS."""

    def __init__(self) -> None:
        self.printed = 0.0

    def __call__(self, entry: dg.EventLogEntry) -> None:
        """Print one event of the run's log."""
        event = entry.dagster_event
        if event is None:
            return
        match event.event_type:
            case dg.DagsterEventType.STEP_START:
                _print(f"{event.step_key} ...")
            case dg.DagsterEventType.STEP_FAILURE:
                _print(f"{event.step_key} failed: {describe_failure(event)}")
            case dg.DagsterEventType.ASSET_OBSERVATION if entry.timestamp - self.printed >= SECONDS:
                self.printed = entry.timestamp
                metadata = event.asset_observation_data.asset_observation.metadata
                _print("    " + "  ".join(f"{name} {_format(value.value)}" for name, value in metadata.items()))
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                check = event.asset_check_evaluation_data
                outcome = "passed" if check.passed else f"{check.severity.value}: {check.description}"
                _print(f"    check {check.check_name}: {outcome}")


def describe_failure(event: dg.DagsterEvent) -> str:
    """Return why a step failed: the message for the user, or of the exception that was raised first."""
    failure = event.step_failure_data
    if failure.user_failure_data is not None:
        return failure.user_failure_data.description or ""
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message if error is not None else ""


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _print("interrupted: run the same command again to resume")
        sys.exit(130)
