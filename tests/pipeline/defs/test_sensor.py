"""The sensor `datasets_folder`, and the games that the job `first_network` fetches."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import zstandard
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from engine.errors import UserError
from pipeline.defs.first_network import fetch_games
from pipeline.defs.resources import DataFolder
from pipeline.defs.sensor import datasets_folder
from pipeline.dumps.fetch import MONTH_PREFIX
from tests.conftest import REPOSITORY
from tests.pipeline.defs.conftest import NetworkRun, random_pgn
from tests.pipeline.loopback import Server, serving

pytestmark = pytest.mark.usefixtures("without_children")


def set_age(path: Path, seconds: float) -> None:
    """Set the mtime of a file to some seconds ago; negative for the future."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


# ---------------------------------------------------------------- the games of first_network


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def test_games_are_a_month_a_url_a_file_or_a_dump(
    data_folder: Path,
    server: Server,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    for name, hashed in (("01", {}), ("02", {"sha256": "0" * 64})):
        server.publish(f"{MONTH_PREFIX}2013-{name}.pgn.zst", data, **hashed)
    (data_folder / "dumps" / f"{MONTH_PREFIX}2013-05.pgn").write_text(random_pgn(2))
    month = data_folder / "dumps" / f"{MONTH_PREFIX}2013-01.pgn.zst"
    mine = tmp_path / "my games.pgn"
    mine.write_text(random_pgn(2))

    @dg.op
    def fetch_all(context: dg.OpExecutionContext) -> None:
        def fetch(games: str) -> str:
            try:
                return fetch_games(context, games, DataFolder())
            except UserError as error:
                return str(error)

        url = f"{server.url}/standard/{MONTH_PREFIX}2013-01.pgn.zst"
        for games in ("2013-01", url, str(month)):
            assert fetch(games) == f"{MONTH_PREFIX}2013-01"
        for games in (str(mine), str(mine), "my games"):
            assert fetch(games) == "my games"
        assert fetch("small") == "small"
        other = tmp_path / "other" / mine.name
        other.parent.mkdir()
        other.write_text(random_pgn(3))
        for games, problem in (
            (str(other), "has the same name"),
            ("nosuch", "there is no dump 'nosuch'"),
            ("README.md", "there is no dump 'README.md'"),
            (str(tmp_path / "nosuch.pgn"), "there is no file"),
            ("/etc/passwd", "must be a PGN file"),
            (f"{server.url}/games", "must be a PGN file"),
            ("2013-02", "the download was deleted"),
            ("2013-04", "does not publish"),
            ("2013-05", f"{MONTH_PREFIX}2013-05.pgn already belongs to"),
        ):
            assert problem in fetch(games)

    monkeypatch.chdir(REPOSITORY)  # where README.md is a file
    job = dg.GraphDefinition(name="job", node_defs=[fetch_all]).to_job()
    assert job.execute_in_process(instance=instance).success
    assert month.read_bytes() == data
    assert not (data_folder / "dumps" / "README.md").exists()
    partitions = [f"{MONTH_PREFIX}2013-01", "my games", "small"]
    assert sorted(instance.get_dynamic_partitions("dumps")) == partitions


# ---------------------------------------------------------------- results of the command line


def run_sensor(instance: dg.DagsterInstance, cursor: str | None) -> tuple[list[str], str | None]:
    """Run the sensor once and store its events; return a line for each event, and the cursor."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    result = datasets_folder(context, datasets=DataFolder())
    assert isinstance(result, dg.SensorResult)
    lines = []
    for event in result.asset_events:
        instance.report_runless_asset_event(event)  # type: ignore[arg-type]
        kind = "observed" if isinstance(event, dg.AssetObservation) else "materialized"
        path = Path(str(event.metadata["path"].value)).relative_to(DataFolder().path)
        lines.append(f"{kind} {event.asset_key.to_user_string()} {event.partition} {path}")
    return lines, result.cursor


def test_new_dumps_become_partitions(data_folder: Path, instance: dg.DagsterInstance) -> None:
    (data_folder / "sample").mkdir()
    for name in ("dumps/notes.txt", "dumps/other.pgn", "sample/games.pgn"):
        (data_folder / name).write_text("x")
    assert run_sensor(instance, None) == ([], "[]")
    assert set(instance.get_dynamic_partitions("dumps")) == {"small", "other", "sample"}


def test_results_of_the_command_line_are_recorded_once(
    network_run: NetworkRun, data_folder: Path, instance: dg.DagsterInstance
) -> None:
    for name in ("positions", "checkpoints", "training_sets", "reports"):
        shutil.copytree(network_run.datasets / name, data_folder / name)
    (network,) = (path.name for path in (data_folder / "checkpoints").iterdir() if path.is_dir())
    shutil.copytree(data_folder / "positions" / "small", data_folder / "positions" / "of-no-dump")
    for name in ("me", "recorded", "unfinished"):
        shutil.copytree(data_folder / "checkpoints" / network, data_folder / "checkpoints" / name)
        (data_folder / "checkpoints" / name / "imitation").mkdir()
    path = {"path": dg.MetadataValue.path(data_folder / "checkpoints" / "recorded")}
    instance.report_runless_asset_event(dg.AssetMaterialization("imitation", metadata=path))
    card = data_folder / "checkpoints" / "unfinished" / "checkpoint.json"
    card.write_text(card.read_text().replace('"finished": true', '"finished": false'))
    (training_set,) = (
        path.name for path in (data_folder / "training_sets").iterdir() if path.is_dir()
    )
    names = ("manifest", "training_set", "checkpoint", "report")
    results = [file for name in names for file in data_folder.rglob(f"{name}.json")]
    for file in results:
        set_age(file, -1000.0)
    assert run_sensor(instance, None)[0] == [], "the copy may be unfinished"
    for file in results:
        set_age(file, 1000.0)
    create_run_for_test(instance, job_name="x", status=DagsterRunStatus.STARTED)
    lines, cursor = run_sensor(instance, None)
    assert sorted(lines) == [
        f"materialized accuracy_report None reports/{network}/{training_set}",
        f"materialized checkpoint None checkpoints/{network}",
        "materialized positions small positions/small",
        f"materialized training_set None training_sets/{training_set}",
        "observed checkpoint None checkpoints/me",
        "observed positions None positions/of-no-dump",
    ]
    assert run_sensor(instance, cursor) == ([], cursor)
    lines, _ = run_sensor(instance, None)  # the cursor was lost
    assert not [line for line in lines if line.startswith("materialized")]
    (record,) = instance.fetch_materializations(dg.AssetKey("accuracy_report"), 9).records
    assert record.asset_materialization is not None
    metadata = record.asset_materialization.metadata
    original = network_run.metadata("accuracy_report")
    for name in ("moves_found", "top1", "headline", "page"):
        assert metadata[name].value == original[name]
    # another version of a result, written while a run is in progress
    card = data_folder / "checkpoints" / network / "checkpoint.json"
    set_age(card, seconds=-1000.0)
    assert run_sensor(instance, cursor)[0] == []
    set_age(card, seconds=500.0)
    assert run_sensor(instance, cursor)[0] == [], "it was materialized later"
