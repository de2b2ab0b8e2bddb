"""`python -m pipeline.defs.run`: materialize every asset for one dump and print the results.

The run is stored in the instance at DAGSTER_HOME (default: `dagster_home/`), so the UI shows it.
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
from pipeline.defs.jobs import build_positions, register, train
from pipeline.defs.resources import SAMPLE, Datasets, load

SECONDS = 10.0
"""Minimum number of seconds between printed observations."""


def main() -> int:
    """Materialize the assets; return 0 unless an asset or a blocking check failed."""
    parser = argparse.ArgumentParser(
        description="Materialize all assets for one dump, from positions to accuracy report."
    )
    parser.add_argument(
        "--dump",
        default=SAMPLE,
        help="file in datasets/dumps/, without its extension, or `sample`",
    )
    parser.add_argument("--preset", default=DEFAULT_PRESET, help="network to train")
    parser.add_argument("--minutes", type=float, default=1.5, help="minutes of training")
    options = parser.parse_args()
    home = Path(pipeline.__file__).resolve().parents[1] / "dagster_home"
    os.environ.setdefault("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        register(instance, Datasets())
        try:
            Datasets().source(options.dump)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        network = {"preset": options.preset, "minutes": options.minutes, "start": "scratch"}
        try:
            result = materialize(instance, options.dump, network)
        except dg.Failure as failure:
            _print(f"failed: {failure.description}")
            return 1
        except dg.DagsterExecutionInterruptedError:
            _print("interrupted: run the same command again to resume")
            return 130
    (report,) = result.asset_materializations_for_node("accuracy_report")
    found = {name: value.value for name, value in report.metadata.items()}
    folder, checkpoint = Path(str(found["path"])), Path(str(found["checkpoint"]))
    _print("\n" + describe_first_run(found, options.dump == SAMPLE, folder, checkpoint))
    return 0


def materialize(
    instance: dg.DagsterInstance, dump: str, network: dict[str, Any]
) -> dg.ExecuteInProcessResult:
    """Materialize all assets except those of self-play, and print the progress.

    `network` holds the options of `checkpoint`. Only the dataset of `dump` is used.
    """
    run_id = str(uuid.uuid4())
    instance.add_event_listener(run_id, Printer())
    ops = {"training_set": {"config": {"positions": [dump]}}, "checkpoint": {"config": network}}
    quiet = {"console": {"config": {"log_level": "CRITICAL"}}}
    definitions = load()
    graph = definitions.resolve_asset_graph()
    return definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        {"ops": ops, "loggers": quiet},
        instance=instance,
        run_id=run_id,
        partition_key=dump,
        asset_selection=sorted((build_positions.selection | train.selection).resolve(graph)),
    )


class Printer:
    """Print the steps and checks of a run, and an observation every SECONDS."""

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
            case dg.DagsterEventType.ASSET_OBSERVATION if entry.timestamp - self.printed >= SECONDS:
                self.printed = entry.timestamp
                seen = event.asset_observation_data.asset_observation.metadata
                _print("    " + "  ".join(f"{name} {it.value}" for name, it in seen.items()))
            case dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                check = event.asset_check_evaluation_data
                failed = f"{check.severity.value}: {check.description}"
                _print(f"    check {check.check_name}: {'passed' if check.passed else failed}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
