"""The sensors, and the games of `first_network`."""

import json
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
from pipeline.defs.assets import DUMP_VERSION, positions
from pipeline.defs.first_network import find_games
from pipeline.defs.jobs import dumps_folder, new_dumps, register
from pipeline.defs.resources import Datasets, version_of
from pipeline.defs.results import command_line_results
from pipeline.dumps.fetch import MONTH_PREFIX
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.defs.conftest import Made, execute, random_pgn
from tests.pipeline.loopback import Server, serving

pytestmark = pytest.mark.usefixtures("without_children")
SETTINGS = {"test_share": 0.2, "seed": 3}


@pytest.fixture
def dump(root: Path) -> Path:
    """A small dump that was written long ago."""
    (root / "dumps" / "small.pgn").write_text(random_pgn(12))
    set_age(root / "dumps" / "small.pgn")
    return root / "dumps" / "small.pgn"


def asked(instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """Look once and give the runs that are requested."""
    found = new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets())
    if isinstance(found, dg.SkipReason):
        return []
    assert isinstance(found, dg.SensorResult)
    return list(found.run_requests or [])


def keys(instance: dg.DagsterInstance) -> list[str | None]:
    return [request.partition_key for request in asked(instance)]


def set_age(path: Path, seconds: float = 1000.0) -> None:
    """Make a file one that was written so long ago; with negative seconds one that still is,
    however slow the test."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_files_are_listed_and_complete_ones_built(dump: Path, instance: dg.DagsterInstance) -> None:
    (dump.parent / "notes.txt").write_text("x")
    for said in ("new dumps: small", "new dumps: none"):
        context = dg.build_sensor_context(instance=instance)
        assert said in str(dumps_folder(context, datasets=Datasets()))
    (dump.parent / "being-copied.pgn").write_text("x")
    set_age(dump.parent / "being-copied.pgn", seconds=-1000.0)
    sample = dump.parents[1] / "sample" / "games.pgn"
    sample.parent.mkdir()
    sample.write_text("x")
    set_age(sample)
    assert keys(instance) == ["small"]
    assert set(instance.get_dynamic_partitions("dumps")) == {"small", "being-copied", "sample"}
    assert register(instance, Datasets()) == []
    # an ingest was killed there
    (dump.parents[1] / "positions" / "small" / ".building").mkdir(parents=True)
    assert keys(instance) == ["small"]


def test_a_dump_is_followed_through_its_changes(dump: Path, instance: dg.DagsterInstance) -> None:
    out = dump.parents[1] / "positions" / "small"

    def build(ops: dict[str, object]) -> None:
        assert execute("build_positions", instance, ops, "small").success

    (request,) = asked(instance)
    assert [each.run_key for each in asked(instance)] == [request.run_key]
    assert request.tags["dagster/max_retries"] == "2"
    build({"positions": {"workers": 1, "more": SETTINGS}})
    assert keys(instance) == []
    dump.write_text(dump.read_text().replace('[Result "1-0"]', '[Result "0-1"]'))  # as long
    set_age(dump, seconds=-1000.0)
    assert keys(instance) == [], "it is changing"
    set_age(dump, seconds=5000.0)  # and older than the positions
    (again,) = asked(instance)
    assert again.run_key != request.run_key, "Dagster skips a run key that it knows"
    assert again.run_config == {}, "the run uses the settings of the positions that exist"
    build({})
    manifest = json.loads((out / "manifest.json").read_text())
    assert {name: manifest["config"][name] for name in SETTINGS} == SETTINGS
    assert keys(instance) == []
    shutil.rmtree(out)
    assert keys(instance) == ["small"]


@pytest.mark.usefixtures("dump")
def test_what_is_under_way_is_not_asked_for_again(instance: dg.DagsterInstance) -> None:
    tags = {"dagster/partition": "small"}
    create_run_for_test(instance, job_name="x", tags=tags, status=DagsterRunStatus.STARTING)
    assert keys(instance) == []


def test_positions_that_were_made_elsewhere_are_built_unless_of_this_version(
    dump: Path, instance: dg.DagsterInstance
) -> None:
    ingest([str(dump)], dump.parents[1] / "positions" / "small", IngestConfig(), workers=1)
    assert keys(instance) == ["small"]
    for version, wanted in ((version_of(dump), []), ("another", ["small"])):
        event = dg.AssetMaterialization(
            positions.key, partition="small", metadata={DUMP_VERSION: version}
        )
        instance.report_runless_asset_event(event)
        assert keys(instance) == wanted


# ---------------------------------------------------------------- the games of first_network


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def test_games_are_a_month_an_address_a_file_or_a_dump(
    root: Path, server: Server, instance: dg.DagsterInstance, tmp_path: Path
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
                return find_games(context, games, Datasets())
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
            (str(tmp_path / "nosuch.pgn"), "there is no file"),
            ("/etc/passwd", "must be a PGN file"),
            (f"{server.url}/games", "must be a PGN file"),
            ("2013-02", "the download was deleted"),
            ("2013-04", "does not publish"),
            ("2013-05", f"{MONTH_PREFIX}2013-05.pgn exists and is used as"),
        ):
            assert says in find(games)

    job = dg.GraphDefinition(name="job", node_defs=[take]).to_job()
    assert job.execute_in_process(instance=instance).success
    assert (root / "dumps" / f"{MONTH_PREFIX}2013-01.pgn.zst").read_bytes() == data
    assert sorted(instance.get_dynamic_partitions("dumps")) == [
        f"{MONTH_PREFIX}2013-01", "my games", "small",
    ]  # fmt: skip


# ---------------------------------------------------------------- results of the command line


def look(instance: dg.DagsterInstance, cursor: str | None) -> tuple[list[str], str | None]:
    """Let the sensor look once; store its events, and return what they are and its cursor."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    found = command_line_results(context, datasets=Datasets())
    assert isinstance(found, dg.SensorResult)
    said = []
    for event in found.asset_events:
        instance.report_runless_asset_event(event)  # type: ignore[arg-type]
        kind = "seen" if isinstance(event, dg.AssetObservation) else "made"
        path = Path(str(event.metadata["path"].value)).relative_to(Datasets().path)
        said.append(f"{kind} {event.asset_key.to_user_string()} {event.partition} {path}")
    return said, found.cursor


def test_results_of_the_command_line_are_recorded_once(
    made: Made, root: Path, instance: dg.DagsterInstance
) -> None:
    for name in ("positions", "checkpoints", "training_sets", "reports"):
        shutil.copytree(made.datasets / name, root / name)
    (network,) = (path.name for path in (root / "checkpoints").iterdir() if path.is_dir())
    shutil.copytree(root / "positions" / "small", root / "positions" / "of-no-dump")
    for name in ("me", "unfinished"):
        shutil.copytree(root / "checkpoints" / network, root / "checkpoints" / name)
    (root / "checkpoints" / "me" / "imitation").mkdir()
    card = root / "checkpoints" / "unfinished" / "checkpoint.json"
    card.write_text(card.read_text().replace('"finished": true', '"finished": false'))
    (joined,) = (path.name for path in (root / "training_sets").iterdir() if path.is_dir())
    for seconds, wanted in ((-1000.0, 0), (1000.0, 6)):  # first they may still be copied
        for name in ("manifest", "training_set", "checkpoint", "report"):
            for file in root.rglob(f"{name}.json"):
                set_age(file, seconds)
        context = dg.build_sensor_context(instance=instance)
        found = command_line_results(context, datasets=Datasets())
        assert len(found.asset_events) == wanted  # type: ignore[union-attr]
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
