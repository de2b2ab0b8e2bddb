"""`python -m pipeline.defs.run`: materialise every asset on one dump from the command line, and print what came of it.

The run lands in the instance at DAGSTER_HOME (`dagster_home/` when unset), so that the UI shows it afterwards. `dg launch`
would take a command for each job and no options of ours, and prints every event of Dagster's.
"""

import argparse
import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

import pipeline
from engine.errors import UserError
from model.training.config import DEFAULT_PRESET
from pipeline.cli.endings import describe_first_run
from pipeline.cli.help import descriptions
from pipeline.defs.pages.metadata import FIGURES
from pipeline.defs.resources import SAMPLE, Datasets
from pipeline.dumps.fetch import month_of

INTERRUPTED = dg.DagsterExecutionInterruptedError.__name__
"""What a step fails with that Ctrl-C ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Materialise dump, positions, training set, checkpoint and accuracy report of one dump, and of no other."""

    dump: str
    """Partition key: a file's name in datasets/dumps/ without its ending, `sample`, or lichess_db_standard_rated_2013-01."""
    preset: str
    """Network to train."""
    minutes: float
    """Minutes of training."""


def main() -> int:
    """Run it; the exit status is 0 only when every asset is there and every check that blocks has passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", default=SAMPLE, help=descriptions(RunOptions)["dump"])
    parser.add_argument("--preset", default=DEFAULT_PRESET, help=descriptions(RunOptions)["preset"])
    parser.add_argument("--minutes", type=float, default=1.5, help=descriptions(RunOptions)["minutes"])
    options = RunOptions(**vars(parser.parse_args()))
    os.environ.setdefault("DAGSTER_HOME", str(Path(pipeline.__file__).resolve().parents[1] / "dagster_home"))
    from pipeline.defs.assets import months
    from pipeline.defs.jobs import register

    with dg.DagsterInstance.get() as instance:
        register(instance, Datasets())
        try:
            month = "" if options.dump in Datasets().dumps() else month_of(options.dump)
            if not month:
                Datasets().source(options.dump)
            elif month not in months.get_partition_keys():
                raise UserError(
                    f"Lichess publishes the months from {months.get_first_partition_key()} on, each when it is over"
                )
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        only = {"positions": [options.dump]}  # other datasets may lie there too
        train = {"train": {"minutes": options.minutes}, "preset": options.preset}
        ops = {"training_set": only, "checkpoint": train, "accuracy_report": only}
        todo: list[tuple[str, dict[str, Any], str | None]] = [("fetch_months", {}, month)] if month else []
        for job, config, partition in [*todo, ("build_positions", {}, options.dump), ("train", ops, None)]:
            result = _run(job, instance, config, partition)
            if not result.success:
                break
        else:
            _conclude(result.asset_materializations_for_node("accuracy_report")[0], options)
        if any(INTERRUPTED in _reason(event) for event in result.get_step_failure_events()):
            raise KeyboardInterrupt
        return 0 if result.success else 1


def _run(
    job: str, instance: dg.DagsterInstance, ops: dict[str, Any], partition: str | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job in this process with the configurations of its assets, printing what happens."""
    from pipeline.defs.loading import load

    run_id = str(uuid.uuid4())
    instance.add_event_listener(run_id, printer())
    config = {"ops": {name: {"config": values} for name, values in ops.items()}}
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    found = load().resolve_job_def(job)
    return found.execute_in_process(
        config | silent, instance=instance, run_id=run_id, partition_key=partition, raise_on_error=False
    )


def printer(seconds: float = 10.0) -> Callable[[dg.EventLogEntry], None]:
    """Return a listener that prints steps, failures and checks, and an observation every so many seconds."""
    observed = 0.0

    def event(entry: dg.EventLogEntry) -> None:
        nonlocal observed
        it = entry.dagster_event
        if it is None:
            return
        match it.event_type:
            case dg.DagsterEventType.STEP_START:
                _say(f"{it.step_key} ...")
            case dg.DagsterEventType.STEP_FAILURE:
                _say(f"{it.step_key} failed: {_reason(it)}")
            case dg.DagsterEventType.ASSET_OBSERVATION if entry.timestamp - observed >= seconds:
                observed = entry.timestamp
                metadata = it.asset_observation_data.asset_observation.metadata
                _say("    " + "  ".join(f"{name} {_number(value.value)}" for name, value in metadata.items()))
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                check = it.asset_check_evaluation_data
                verdict = "passed" if check.passed else f"{check.severity.value}: {check.description}"
                _say(f"    check {check.check_name}: {verdict}")

    return event


def _reason(event: dg.DagsterEvent) -> str:
    """Return why a step failed: what a person can mend in one line, anything else as it was raised."""
    failure = event.step_failure_data
    if failure.user_failure_data is not None:
        return failure.user_failure_data.description or ""
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message if error is not None else ""


def _conclude(report: dg.AssetMaterialization, options: RunOptions) -> None:
    """Print what the report's figures mean, and what can be done next."""
    found = {name: value.value for name, value in report.metadata.items()}
    figures = {name: found[name] for name in FIGURES if name in found}
    folder = Path(str(found["path"])) / options.dump
    _say("\n" + describe_first_run(figures, options.dump == SAMPLE, folder, Path(str(found["checkpoint"]))))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        _say("interrupted: run the same command again, and it continues from what is complete")
        sys.exit(130)
