import functools
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engine.progress import Progress, never, silent
from pipeline.cli.progress import call_with_supported
from pipeline.definitions import defs
from pipeline.defs import child, first_network
from pipeline.defs.assets import accuracy_report, checkpoint, dump, positions, training_set
from pipeline.defs.resources import DataFolder
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game

CHARTS = ("draw_bars", "draw_reliability", "draw_training")
DUMP_TO_REPORT = (dump, positions, training_set, checkpoint, accuracy_report)
"""The assets from a dump to the accuracy report."""
SHORT_TRAINING = {"minutes": 0.0, "more": {"steps": 12, "batch_size": 16, "threads": 1}}
NO_CONSOLE_LOG = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@functools.cache
def definitions() -> dg.Definitions:
    """Load the definitions once, because loading takes longer than most runs."""
    return defs()


def random_pgn(games: int, first: int = 140) -> str:
    """Return games of 40 random legal moves; the first 60 of them have games in each split."""
    return "".join(random_game(seed, 40) for seed in range(first, first + games))


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one dump, `small`, beside the home of a Dagster instance."""
    return prepare_data_folder(tmp_path, monkeypatch)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def prepare_data_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a data folder with the dump `small`, and point Dagster's environment to it."""
    datasets = folder / "datasets"
    (datasets / "dumps").mkdir(parents=True)
    (datasets / "dumps" / "small.pgn").write_text(random_pgn(60))
    home = folder / "home"
    home.mkdir()
    settings = (REPOSITORY / "dagster_home" / "dagster.yaml").read_text()
    settings = settings.replace("poll_interval_seconds: 10", "poll_interval_seconds: 2")
    (home / "dagster.yaml").write_text(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("FIANCHETTO_DATASETS", str(datasets))
    return datasets


def execute_assets(
    assets: Iterable[dg.AssetsDefinition],
    instance: dg.DagsterInstance,
    ops: dict[str, object],
    key: str | None = None,
) -> dg.ExecuteInProcessResult:
    """Materialize assets and run their checks, with the project's definitions."""
    config = {"ops": {name: {"config": values} for name, values in ops.items()}}
    job = definitions().resolve_job_def("__ASSET_JOB")
    selection = [asset.key for asset in assets]
    options = {"instance": instance, "partition_key": key, "asset_selection": selection}
    return job.execute_in_process(config | NO_CONSOLE_LOG, raise_on_error=False, **options)


def read_failure(result: dg.ExecuteInProcessResult, step: str) -> str:
    (event,) = [event for event in result.get_step_failure_events() if event.step_key == step]
    data = event.step_failure_data
    user_error = data.user_failure_data
    return str(user_error.description) if user_error else data.error_display_string


def read_check_results(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


def mark_materialized(instance: dg.DagsterInstance, key: str) -> None:
    """Record a materialization of a dump's positions."""
    instance.add_dynamic_partitions("dumps", [key])
    instance.report_runless_asset_event(dg.AssetMaterialization(positions.key, partition=key))


def materialize_alone(
    asset: dg.AssetsDefinition,
    instance: dg.DagsterInstance,
    options: dict[str, object],
    key: str | None = None,
) -> str:
    """Materialize one asset without its checks; return the error message, "" on success."""
    (name,) = asset.key.path
    result = dg.materialize(
        [asset],
        instance=instance,
        partition_key=key,
        resources={"datasets": DataFolder()},
        run_config={"ops": {name: {"config": options}}},
        raise_on_error=False,
    )
    return "" if result.success else read_failure(result, name)


def run_in_process(
    work: Callable[..., Any], *, progress: Progress = silent, lock: Path | None = None
) -> Any:
    """Call the work of a child process in this process, pickled as for a child."""
    work = pickle.loads(pickle.dumps((work, lock)))[0]
    return call_with_supported(work, progress=progress, stop=never)


def replace_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of assets and checks in this process, and do not draw the charts of reports."""
    monkeypatch.setattr(child, "run_child", run_in_process)
    for name in CHARTS:
        monkeypatch.setattr(f"pipeline.evaluation.charts.{name}", lambda *_, **__: "<svg/>")


@pytest.fixture
def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of assets and checks in this process, and draw no charts."""
    replace_children(monkeypatch)
    monkeypatch.setattr("pipeline.defs.pages.pictures.draw_histogram", lambda *_: b"")


@dataclass(frozen=True)
class NetworkRun:
    """A run of `first_network` on a small dump: data folder, Dagster instance, printed text."""

    datasets: Path
    instance: dg.DagsterInstance
    output: str

    def events(self, event_type: dg.DagsterEventType) -> list[Any]:
        (run,) = self.instance.get_runs()
        entries = self.instance.all_logs(run.run_id, of_type=event_type)
        return [entry.dagster_event for entry in entries]

    def metadata(self, asset: str) -> dict[str, Any]:
        events = self.events(dg.DagsterEventType.ASSET_MATERIALIZATION)
        (event,) = [event for event in events if event.asset_key == dg.AssetKey(asset)]
        metadata = event.step_materialization_data.materialization.metadata
        return {name: value.value for name, value in metadata.items()}


@pytest.fixture(scope="session")
def network_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkRun]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepare_data_folder(tmp_path_factory.mktemp("network-run"), monkeypatch)
        replace_children(monkeypatch)
        monkeypatch.setattr(first_network, "load_definitions", definitions)
        monkeypatch.setattr(sys, "argv", ["run", "--dump", "small", "--minutes", "0.02"])
        printed: list[str] = []
        monkeypatch.setattr(first_network, "_print", printed.append)
        assert first_network.main() == 0, printed
        instance = dg.DagsterInstance.get()
    with instance:  # after the patches have been undone
        yield NetworkRun(datasets, instance, "\n".join(printed))


@pytest.fixture
def filled_folder(network_run: NetworkRun, data_folder: Path) -> Path:
    """A data folder with a copy of the positions and the checkpoint of `network_run`."""
    for name in ("positions", "checkpoints"):
        shutil.copytree(network_run.datasets / name, data_folder / name)
    return data_folder
