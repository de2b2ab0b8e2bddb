import functools
import inspect
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import dagster as dg
import pytest

from engine.progress import Progress, silent
from pipeline.definitions import defs
from pipeline.defs import child, first_network
from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    dump,
    leaderboard,
    positions,
    training_set,
)
from pipeline.defs.resources import Datasets

ROOT = Path(__file__).parents[3]
CHARTS = ("draw_bars", "draw_reliability", "draw_training")
CHAIN = (dump, positions, training_set, checkpoint, accuracy_report)
"""All assets but those of self-play."""
STEPS = {"minutes": 0.0, "more": {"steps": 12, "batch_size": 16, "threads": 1}}
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@functools.cache
def definitions() -> dg.Definitions:
    """Load the definitions once: it takes longer than most runs of these tests."""
    return defs()


@functools.cache
def random_pgn(games: int, seed: int = 0, plies: int = 40) -> str:
    """Games of random legal moves in Lichess's layout."""
    rng = random.Random(seed)
    written = []
    for number in range(games):
        game, board = chess.pgn.Game(), chess.Board()
        headers = {"Event": "Rated Blitz game", "White": "a", "Black": "b"}
        headers |= {"Site": f"https://lichess.org/{number:08d}", "TimeControl": "300+0"}
        headers |= {"WhiteElo": str(1400 + number), "BlackElo": str(1500 + number)}
        node: chess.pgn.GameNode = game
        while not board.is_game_over() and board.ply() < plies:
            move = rng.choice(list(board.legal_moves))
            node = node.add_variation(move)
            board.push(move)
        result = board.result() if board.is_game_over() else rng.choice(["1-0", "0-1", "1/2-1/2"])
        for name, value in (headers | {"Result": result, "Termination": "Normal"}).items():
            game.headers[name] = value
        written.append(f"{game}\n\n")
    return "".join(written)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of datasets with one dump, `small`, and an instance's home beside it."""
    return prepared(tmp_path, monkeypatch)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = folder / "datasets"
    (datasets / "dumps").mkdir(parents=True)
    (datasets / "dumps" / "small.pgn").write_text(random_pgn(60))
    home = folder / "home"
    home.mkdir()
    settings = (ROOT / "dagster_home" / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(
        settings.replace("poll_interval_seconds: 10", "poll_interval_seconds: 2")
    )
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("FIANCHETTO_DATASETS", str(datasets))
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return datasets


def execute(
    job: str, instance: dg.DagsterInstance, ops: dict[str, object], key: str | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job in this process with the real definitions.

    `everything` is CHAIN, and `train` the assets of that job, materialised as from the asset graph.
    """
    config = {"ops": {name: {"config": values} for name, values in ops.items()}}
    selections = {"everything": CHAIN, "train": (*CHAIN[2:], leaderboard)}
    chosen = [asset.key for asset in selections[job]] if job in selections else None
    found = definitions().resolve_job_def("__ASSET_JOB" if chosen else job)
    return found.execute_in_process(
        config | QUIET,
        instance=instance,
        partition_key=key,
        raise_on_error=False,
        asset_selection=chosen,
    )


def failure(result: dg.ExecuteInProcessResult, step: str) -> str:
    (event,) = [event for event in result.get_step_failure_events() if event.step_key == step]
    said = event.step_failure_data.user_failure_data
    return str(said.description) if said else event.step_failure_data.error_display_string


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


def materialised(instance: dg.DagsterInstance, key: str) -> None:
    """Note in an instance that positions of a dump were made."""
    instance.add_dynamic_partitions("dumps", [key])
    instance.report_runless_asset_event(dg.AssetMaterialization(positions.key, partition=key))


def one(
    asset: dg.AssetsDefinition,
    instance: dg.DagsterInstance,
    options: dict[str, object],
    key: str | None = None,
) -> str:
    """Materialise one asset, of a partition, and give what it says when it fails."""
    (name,) = asset.key.path
    result = dg.materialize(
        [asset],
        instance=instance,
        partition_key=key,
        resources={"datasets": Datasets()},
        run_config={"ops": {name: {"config": options}}},
        raise_on_error=False,
    )
    return "" if result.success else failure(result, name)


def run_here(
    work: Callable[..., Any], *, progress: Progress = silent, lock: Path | None = None
) -> Any:
    """Do a child's work in this process, as it would arrive there."""
    work = pickle.loads(pickle.dumps((work, lock)))[0]
    offered = {"progress": progress, "stop": lambda: False}
    parameters = inspect.signature(work).parameters
    return work(**{name: value for name, value in offered.items() if name in parameters})


def work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of assets and checks in this process, and draw no charts of reports."""
    monkeypatch.setattr(child, "run_child", run_here)
    for name in CHARTS:
        monkeypatch.setattr(f"pipeline.evaluation.charts.{name}", lambda *_: "")


@pytest.fixture
def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process, and draw no histograms either; `made` has one."""
    work_here(monkeypatch)
    monkeypatch.setattr("pipeline.defs.pages.pictures.histogram", lambda *_: b"")


@dataclass(frozen=True)
class Made:
    """The folder and the run of the job `first_network` on a small dump."""

    datasets: Path
    instance: dg.DagsterInstance
    output: str

    def events(self, kind: dg.DagsterEventType) -> list[Any]:
        (it,) = self.instance.get_runs()
        return [log.dagster_event for log in self.instance.all_logs(it.run_id, of_type=kind)]

    def metadata(self, asset: str) -> dict[str, Any]:
        (event,) = [
            event
            for event in self.events(dg.DagsterEventType.ASSET_MATERIALIZATION)
            if event.asset_key == dg.AssetKey(asset)
        ]
        found = event.step_materialization_data.materialization.metadata
        return {name: value.value for name, value in found.items()}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepared(tmp_path_factory.mktemp("made"), monkeypatch)
        work_here(monkeypatch)
        monkeypatch.setattr(first_network, "load", definitions)
        monkeypatch.setattr(sys, "argv", ["run", "--dump", "small", "--minutes", "0.02"])
        printed: list[str] = []
        monkeypatch.setattr(first_network, "_print", printed.append)
        assert first_network.main() == 0, printed
        instance = dg.DagsterInstance.get()
    with instance:  # the other tests of the session see none of the patches
        yield Made(datasets, instance, "\n".join(printed))


@pytest.fixture
def copied(made: Made, root: Path) -> Path:
    """A folder of datasets that holds a copy of the positions and the checkpoint."""
    for name in ("positions", "checkpoints"):
        shutil.copytree(made.datasets / name, root / name)
    return root
