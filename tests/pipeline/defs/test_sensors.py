"""The sensors and the job of months: what lies in `datasets/dumps/`, and what was made of it."""

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

from pipeline.defs.assets import DUMP_VERSION, positions
from pipeline.defs.jobs import dumps_folder, fetched_months, new_dumps, register
from pipeline.defs.resources import Datasets, version_of
from pipeline.dumps.fetch import STEM
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.defs.conftest import execute, failure, random_pgn
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
    build({"positions": {"workers": 1, "ingest": SETTINGS}})
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


# ---------------------------------------------------------------- months of Lichess


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def fetched(instance: dg.DagsterInstance, month: str) -> dg.ExecuteInProcessResult:
    return execute("fetch_month", instance, {"download": {"month": month}})


def requested(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str | None]:
    """Return the partitions whose positions the sensor requests after a run."""
    run = instance.get_run_by_id(result.run_id)
    (end,) = [event for event in result.all_events if event.event_type_value == "PIPELINE_SUCCESS"]
    context = dg.build_run_status_sensor_context(
        "fetched_months", end, instance, run, resources={"datasets": Datasets()}
    )
    return [request.partition_key for request in fetched_months(context)]


def test_months_are_fetched_and_their_positions_requested(
    root: Path, server: Server, instance: dg.DagsterInstance
) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    names = [f"{STEM}2013-0{number}" for number in range(1, 6)]
    server.publish(f"{names[0]}.pgn.zst", data)
    server.publish(f"{names[1]}.pgn.zst", data)
    server.publish(f"{names[2]}.pgn.zst", data, sha256="0" * 64)
    (root / "dumps" / f"{names[4]}.pgn").write_text(random_pgn(2))
    result = fetched(instance, "2013-01..2013-02")
    assert result.success
    assert (root / "dumps" / f"{names[0]}.pgn.zst").read_bytes() == data
    assert instance.get_dynamic_partitions("dumps") == names[:2]
    assert requested(instance, result) == names[:2]
    for month, says in (
        ("2013-03", "it was not kept"),
        ("2013-04", "does not publish"),
        ("2013-05", f"{names[4]}.pgn exists and is used as it is"),
        ("2013-13", "newest months are"),
        ("https://evil.test/x.pgn", "newest months are"),
        ("", "newest months are"),
    ):
        assert says in failure(fetched(instance, month), "download")
    assert not list((root / "dumps").glob(f"{STEM}2013-0[34]*"))
    assert instance.get_dynamic_partitions("dumps") == names[:2]
    ops: dict[str, object] = {"positions": {"workers": 1}}
    assert execute("build_positions", instance, ops, names[0]).success
    assert requested(instance, result) == [names[1]], "the other's are current"
