"""Runs under the real daemon and web server: Terminate, and run workers that are killed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import BUILDING
from tests.pipeline.datasets import content
from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.server import Server, serving, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG = {"name": "long", "minutes": 30.0, "train": {"batch_size": 32, "threads": 1}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepared(tmp_path_factory.mktemp("served"), monkeypatch)
        text = random_pgn(100)
        with (datasets / "dumps" / "large.pgn").open("w") as file:
            for _ in range(4000):
                file.write(text)
        with serving() as server:
            run = server.launch("register_dumps", {})
            wait(lambda: server.status(run) == "SUCCESS", 60)
            yield datasets, server


def finished_shards(out: Path) -> list[Path]:
    """List the shards of finished chunks of an ingest that is not complete."""
    return list((out / BUILDING).glob("train-*.parquet"))


def gone(processes: list[psutil.Process]) -> bool:
    return not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes
    )


def test_the_sensor_turns_a_new_file_into_positions(served: tuple[Path, Server]) -> None:
    datasets, server = served
    (datasets / "dumps" / "dropped.pgn").write_text(random_pgn(20, seed=1))
    os.utime(datasets / "dumps" / "dropped.pgn", (0, 0))
    for name in ("small", "large"):  # they have no positions either, and are for the tests below
        os.utime(datasets / "dumps" / f"{name}.pgn", (2e9, 2e9))
    query = """mutation($it: SensorSelector!) { startSensor(sensorSelector: $it) { __typename
        ... on Sensor { sensorState { id } } } }"""
    selector = {
        "repositoryLocationName": server.location(),
        "repositoryName": "__repository__",
        "sensorName": "new_dumps",
    }
    started = server.ask(query, it=selector)["startSensor"]
    assert started["__typename"] == "Sensor"
    wait(lambda: (datasets / "positions" / "dropped" / "manifest.json").exists(), 120)
    query = """mutation($id: String!) { stopSensor(id: $id) { __typename } }"""
    stopped = server.ask(query, id=started["sensorState"]["id"])["stopSensor"]
    assert stopped["__typename"] == "StopSensorMutationResult"


def test_a_backfill_over_two_dumps_trains_once(served: tuple[Path, Server]) -> None:
    _, server = served
    names = [
        node["assetKey"]["path"]
        for node in server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]
    ]
    for name in ("tuned_checkpoint", "strength_report", "imitation"):
        names.remove([name])  # partitions by name: with names given, Dagster backfills one kind
    steps = {"steps": 4, "batch_size": 16}
    ops = {"checkpoint": {"config": {"name": "once", "minutes": 0.0, "train": steps}}}
    ops |= {
        "positions": {
            "config": {
                "workers": 1,
                "ingest": {"test_share": 0.2, "val_share": 0.2},
                "replace": True,
            }
        }
    }
    parameters = {
        "assetSelection": [{"path": path} for path in names],
        "partitionNames": ["small", "dropped"],
    }
    query = """mutation($it: LaunchBackfillParams!) {
        launchPartitionBackfill(backfillParams: $it) { __typename
        ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
    launched = server.ask(query, it=parameters | {"runConfigData": {"ops": ops}})[
        "launchPartitionBackfill"
    ]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    status = """query($id: String!) {
        partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status
        runs { ... on Run { status assetSelection { path } tags { key value }
            stepStats { stepKey status } } } } } }"""

    def ended() -> Any:
        found = server.ask(status, id=launched["backfillId"])["partitionBackfillOrError"]
        return found if found["status"].startswith(("COMPLETED", "FAILED", "CANCELED")) else None

    found = wait(ended, 900, lambda: str(server.ask(status, id=launched["backfillId"])))
    assert {run["status"] for run in found["runs"]} == {"SUCCESS"}
    steps = [
        (step["stepKey"], step["status"]) for run in found["runs"] for step in run["stepStats"]
    ]
    assert steps.count(("positions", "SUCCESS")) == 2
    assert steps.count(("checkpoint", "SUCCESS")) == 1
    assert steps.count(("accuracy_report", "SUCCESS")) == 1


def test_terminate_stops_ingest_and_its_workers(served: tuple[Path, Server]) -> None:
    datasets, server = served
    out = datasets / "positions" / "large"
    config = {"ops": {"positions": {"config": {"workers": 2, "ingest": {"chunk_mib": 8}}}}}
    run = server.launch("build_positions", config, {"dagster/partition": "large"})
    wait(lambda: finished_shards(out), 120)
    workers = server.children()
    assert len(workers) >= 3
    server.terminate(run)
    wait(lambda: gone(workers), 30)
    wait(lambda: server.status(run) == "CANCELED", 30)
    assert not (out / "manifest.json").exists()
    for shard in finished_shards(out):
        assert pq.ParquetFile(shard).metadata.num_rows > 0


def test_terminate_makes_training_save_and_stop(served: tuple[Path, Server]) -> None:
    datasets, server = served
    run = server.launch("build_positions", {}, {"dagster/partition": "small"})
    wait(lambda: server.status(run) == "SUCCESS", 90)
    run = server.launch("train", LONG)
    out = datasets / "checkpoints" / "long"
    wait(
        lambda: (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 100,
        90,
    )
    workers = server.children()
    server.terminate(run)
    wait(lambda: gone(workers), 30)
    wait(lambda: server.status(run) == "CANCELED", 30)
    card = json.loads((out / "checkpoint.json").read_text())
    assert card["finished"] is False
    assert card["step"] > 0
    assert {path.name for path in out.iterdir() if "safetensors" in path.name} == {
        entry["name"] for entry in card["files"].values()
    }
    assert not list(out.glob("*.tmp"))


def test_a_killed_run_worker_is_noticed_and_its_work_stops(served: tuple[Path, Server]) -> None:
    datasets, server = served
    out = datasets / "checkpoints" / "long"
    before = json.loads((out / "checkpoint.json").read_text())["step"]
    run = server.launch("train", LONG)
    workers = wait(lambda: server.children(), 60)
    wait(
        lambda: (
            (out / "metrics.jsonl").exists() and json.loads((out / "checkpoint.json").read_text())
        ),
        30,
    )
    parent = workers[0].parent()
    assert parent is not None
    parent.kill()
    wait(lambda: gone(workers), 30)
    wait(lambda: server.status(run) == "FAILURE", 30)
    assert json.loads((out / "checkpoint.json").read_text())["step"] >= before


def test_an_ingest_whose_run_worker_is_killed_ends_with_the_same_bytes_when_it_is_run_again(
    served: tuple[Path, Server], tmp_path: Path
) -> None:
    datasets, server = served
    dump, out = datasets / "dumps" / "killed.pgn", datasets / "positions" / "killed"
    dump.write_text(random_pgn(100) * 150)
    run = server.launch("register_dumps", {})
    wait(lambda: server.status(run) == "SUCCESS", 60)
    config = {"ops": {"positions": {"config": {"workers": 1, "ingest": {"chunk_mib": 1}}}}}
    run = server.launch("build_positions", config, {"dagster/partition": "killed"})
    wait(lambda: finished_shards(out), 120)
    workers = server.children()
    parent = workers[0].parent()
    assert parent is not None
    parent.kill()
    wait(lambda: gone(workers), 30)
    wait(lambda: server.status(run) == "FAILURE", 30)
    assert not (out / "manifest.json").exists(), "it was over before it could be killed"
    done = finished_shards(out)
    run = server.launch("build_positions", config, {"dagster/partition": "killed"})
    wait(lambda: server.status(run) == "SUCCESS", 300)
    ingest([str(dump)], tmp_path / "undisturbed", IngestConfig(chunk_mib=1), workers=1)
    assert content(out) == content(tmp_path / "undisturbed")
    assert 0 < len(done) < len(list(out.glob("train-*.parquet")))
