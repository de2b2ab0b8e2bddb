"""The sensor of the folder of datasets, and the games of `first_network`."""

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
from tests.pipeline.defs.conftest import Made, random_pgn
from tests.pipeline.loopback import Server, serving

pytestmark = pytest.mark.usefixtures("without_children")


def set_age(path: Path, seconds: float) -> None:
    """Set when a file was last changed, in seconds ago; negative for a time in the future."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


# ---------------------------------------------------------------- the games of first_network


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def test_games_are_a_month_a_url_a_file_or_a_dump(
    root: Path,
    server: Server,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    for name, hashed in (("01", {}), ("02", {"sha256": "0" * 64})):
        server.publish(f"{MONTH_PREFIX}2013-{name}.pgn.zst", data, **hashed)
    (root / "dumps" / f"{MONTH_PREFIX}2013-05.pgn").write_text(random_pgn(2))
    mine = tmp_path / "my games.pgn"
    mine.write_text(random_pgn(2))

    @dg.op
    def take(context: dg.OpExecutionContext) -> None:
        def find(games: str) -> str:
            try:
                return fetch_games(context, games, DataFolder())
            except UserError as error:
                return str(error)

        address = f"{server.url}/standard/{MONTH_PREFIX}2013-01.pgn.zst"
        for games in ("2013-01", address, str(root / "dumps" / f"{MONTH_PREFIX}2013-01.pgn.zst")):
            assert find(games) == f"{MONTH_PREFIX}2013-01"
        for games in (str(mine), str(mine), "my games"):
            assert find(games) == "my games"
        assert find("small") == "small"
        other = tmp_path / "other" / mine.name
        other.parent.mkdir()
        other.write_text(random_pgn(3))
        for games, says in (
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
            assert says in find(games)

    monkeypatch.chdir(REPOSITORY)  # where README.md is a file
    job = dg.GraphDefinition(name="job", node_defs=[take]).to_job()
    assert job.execute_in_process(instance=instance).success
    assert (root / "dumps" / f"{MONTH_PREFIX}2013-01.pgn.zst").read_bytes() == data
    assert not (root / "dumps" / "README.md").exists()
    assert sorted(instance.get_dynamic_partitions("dumps")) == [
        f"{MONTH_PREFIX}2013-01", "my games", "small",
    ]  # fmt: skip


# ---------------------------------------------------------------- results of the command line


def look(instance: dg.DagsterInstance, cursor: str | None) -> tuple[list[str], str | None]:
    """Run the sensor once and store its events; return a line for each, and the cursor."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    found = datasets_folder(context, datasets=DataFolder())
    assert isinstance(found, dg.SensorResult)
    said = []
    for event in found.asset_events:
        instance.report_runless_asset_event(event)  # type: ignore[arg-type]
        kind = "seen" if isinstance(event, dg.AssetObservation) else "made"
        path = Path(str(event.metadata["path"].value)).relative_to(DataFolder().path)
        said.append(f"{kind} {event.asset_key.to_user_string()} {event.partition} {path}")
    return said, found.cursor


def test_new_dumps_become_partitions(root: Path, instance: dg.DagsterInstance) -> None:
    (root / "sample").mkdir()
    for name in ("dumps/notes.txt", "dumps/other.pgn", "sample/games.pgn"):
        (root / name).write_text("x")
    assert look(instance, None) == ([], "[]")
    assert set(instance.get_dynamic_partitions("dumps")) == {"small", "other", "sample"}


def test_results_of_the_command_line_are_recorded_once(
    made: Made, root: Path, instance: dg.DagsterInstance
) -> None:
    for name in ("positions", "checkpoints", "training_sets", "reports"):
        shutil.copytree(made.datasets / name, root / name)
    (network,) = (path.name for path in (root / "checkpoints").iterdir() if path.is_dir())
    shutil.copytree(root / "positions" / "small", root / "positions" / "of-no-dump")
    for name in ("me", "recorded", "unfinished"):
        shutil.copytree(root / "checkpoints" / network, root / "checkpoints" / name)
        (root / "checkpoints" / name / "imitation").mkdir()
    path = {"path": dg.MetadataValue.path(root / "checkpoints" / "recorded")}
    instance.report_runless_asset_event(dg.AssetMaterialization("imitation", metadata=path))
    card = root / "checkpoints" / "unfinished" / "checkpoint.json"
    card.write_text(card.read_text().replace('"finished": true', '"finished": false'))
    (joined,) = (path.name for path in (root / "training_sets").iterdir() if path.is_dir())
    names = ("manifest", "training_set", "checkpoint", "report")
    results = [file for name in names for file in root.rglob(f"{name}.json")]
    for file in results:
        set_age(file, -1000.0)
    assert look(instance, None)[0] == [], "they may still be copied"
    for file in results:
        set_age(file, 1000.0)
    create_run_for_test(instance, job_name="x", status=DagsterRunStatus.STARTED)
    said, cursor = look(instance, None)
    assert sorted(said) == [
        f"made accuracy_report None reports/{network}/{joined}",
        f"made checkpoint None checkpoints/{network}",
        "made positions small positions/small",
        f"made training_set None training_sets/{joined}",
        "seen checkpoint None checkpoints/me",
        "seen positions None positions/of-no-dump",
    ]
    assert look(instance, cursor) == ([], cursor)
    assert not [it for it in look(instance, None)[0] if it.startswith("made")], "cursor lost"
    (record,) = instance.fetch_materializations(dg.AssetKey("accuracy_report"), 9).records
    assert record.asset_materialization is not None
    shown = record.asset_materialization.metadata
    original = made.metadata("accuracy_report")
    for name in ("moves_found", "top1", "headline", "page"):
        assert shown[name].value == original[name]
    # another version of a result, written while a run is under way
    card = root / "checkpoints" / network / "checkpoint.json"
    set_age(card, seconds=-1000.0)
    assert look(instance, cursor)[0] == []
    set_age(card, seconds=500.0)
    assert look(instance, cursor)[0] == [], "materialized since"
