"""The sensor: it goes by what lies in `datasets/dumps/` and what was made of it, and asks for
nothing twice."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from pipeline.defs.assets import DUMP_VERSION, positions
from pipeline.defs.jobs import dumps_folder, new_dumps, register
from pipeline.defs.resources import Compute, Datasets, version_of
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.defs.conftest import execute, random_pgn

pytestmark = pytest.mark.usefixtures("without_children")


SETTINGS = {"test_share": 0.2, "seed": 3}


@pytest.fixture
def instance(root: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that knows nothing, beside one dump that was written long ago."""
    old(root / "dumps" / "small.pgn")
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def asked(instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """Look once and give the runs that are requested; partitions are added as the daemon does
    it."""
    found = new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets())
    if isinstance(found, dg.SkipReason):
        return []
    assert isinstance(found, dg.SensorResult)
    for request in found.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions("dumps", list(request.partition_keys))
    return list(found.run_requests or [])


def keys(instance: dg.DagsterInstance) -> list[str | None]:
    return [request.partition_key for request in asked(instance)]


def old(path: Path, seconds: float = 1000.0) -> None:
    """Make a file one that was written so long ago; with negative seconds one that still is,
    however slow the test."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_what_lies_there_at_the_first_look_is_built(
    root: Path, instance: dg.DagsterInstance
) -> None:
    (root / "dumps" / "being-copied.pgn").write_text("x")
    old(root / "dumps" / "being-copied.pgn", seconds=-1000.0)
    (root / "dumps" / "notes.txt").write_text("x")
    (root / "sample").mkdir()
    (root / "sample" / "games.pgn").write_text("x")
    old(root / "sample" / "games.pgn")
    assert keys(instance) == ["small"]
    assert instance.get_dynamic_partitions("dumps") == ["small"]


def test_a_dump_is_listed_before_it_is_built(root: Path, instance: dg.DagsterInstance) -> None:
    (root / "dumps" / "notes.txt").write_text("x")
    for said in ("new dumps: small", "new dumps: none"):
        assert said in str(
            dumps_folder(dg.build_sensor_context(instance=instance), datasets=Datasets())
        )
    assert instance.get_dynamic_partitions("dumps") == ["small"]


def test_a_known_dump_without_positions_is_built(root: Path, instance: dg.DagsterInstance) -> None:
    assert register(instance, Datasets()) == ["small"]
    assert keys(instance) == ["small"]
    (root / "positions" / "small" / ".building").mkdir(parents=True)  # an ingest was killed there
    assert keys(instance) == ["small"]


def test_it_follows_a_dump_through_its_changes(root: Path, instance: dg.DagsterInstance) -> None:
    dump = root / "dumps" / "small.pgn"
    (request,) = asked(instance)
    assert execute(
        "build_positions", instance, {"positions": {"workers": 1, "ingest": SETTINGS}}, "small"
    ).success
    assert keys(instance) == []
    text = dump.read_text()
    dump.write_text(text.replace('[Result "1-0"]', '[Result "0-1"]'))  # as long as before
    old(dump, seconds=-1000.0)
    looked = new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets())
    assert isinstance(looked, dg.SkipReason)
    assert "1 of its files are changing" in str(looked)
    old(dump, seconds=5000.0)  # and older than the positions
    (again,) = asked(instance)
    assert again.run_key != request.run_key
    assert again.run_config == {}, "the run uses the settings of the positions that exist"
    assert execute(
        "build_positions", instance, {"positions": {"workers": 1, "ingest": SETTINGS}}, "small"
    ).success
    manifest = json.loads((root / "positions" / "small" / "manifest.json").read_text())
    assert {name: manifest["config"][name] for name in SETTINGS} == SETTINGS
    assert keys(instance) == []
    shutil.rmtree(root / "positions" / "small")
    assert keys(instance) == ["small"]


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED])
def test_what_is_under_way_is_not_asked_for_again(
    root: Path, instance: dg.DagsterInstance, status: DagsterRunStatus
) -> None:
    create_run_for_test(
        instance, job_name="another", tags={"dagster/partition": "small"}, status=status
    )
    assert keys(instance) == []
    (root / "dumps" / "other.pgn").write_text(random_pgn(2))
    old(root / "dumps" / "other.pgn")
    assert keys(instance) == ["other"]


def test_each_version_of_a_file_is_requested_once(root: Path, instance: dg.DagsterInstance) -> None:
    """Dagster skips a run key that it knows: a run that failed or was cancelled is not repeated
    until the file changes."""
    (first,) = asked(instance)
    (again,) = asked(instance)
    assert first.run_key == again.run_key
    assert first.tags["dagster/max_retries"] == "2"
    (root / "dumps" / "small.pgn").write_text(random_pgn(3))
    old(root / "dumps" / "small.pgn")
    (changed,) = asked(instance)
    assert changed.run_key != first.run_key


def test_positions_that_were_made_elsewhere_are_built_unless_of_this_version(
    root: Path, instance: dg.DagsterInstance
) -> None:
    dump, out = root / "dumps" / "small.pgn", root / "positions" / "small"
    ingest([str(dump)], out, IngestConfig(test_share=0.2, seed=3), workers=1)
    assert keys(instance) == ["small"]
    current = {DUMP_VERSION: version_of(dump)}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(positions.key, partition="small", metadata=current)
    )
    assert keys(instance) == []
    other = {DUMP_VERSION: "another"}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(positions.key, partition="small", metadata=other)
    )
    assert keys(instance) == ["small"]


def test_a_run_that_names_no_options_builds_a_partition_as_it_was(
    root: Path, instance: dg.DagsterInstance
) -> None:
    """As the sensor asks for it, and a plain click on Materialize."""
    dump, out = root / "dumps" / "small.pgn", root / "positions" / "small"
    register(instance, Datasets())
    ingest([str(dump)], out, IngestConfig(test_share=0.2, seed=3), workers=1)
    dump.write_text(random_pgn(20, seed=7))
    resources = {"datasets": Datasets(), "compute": Compute()}
    assert dg.materialize(
        [positions], instance=instance, partition_key="small", resources=resources
    ).success
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["sources"][0]["bytes"] == dump.stat().st_size
    assert {name: manifest["config"][name] for name in SETTINGS} == SETTINGS
