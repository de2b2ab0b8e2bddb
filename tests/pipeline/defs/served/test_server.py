"""Runs under the real daemon and web server: backfills, termination, kills, the server's end."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.dumps.fetch import MONTH_PREFIX
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.job_folder import BUILDING
from tests.pipeline.datasets import content
from tests.pipeline.defs.conftest import prepare_data_folder, random_pgn
from tests.pipeline.defs.served.server import Server, serving, wait_for
from tests.pipeline.loopback import serving as publishing
from tests.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MONTH = f"{MONTH_PREFIX}2013-02"
LONG_TRAINING = {"name": "long", "minutes": 30.0, "more": {"batch_size": 32, "threads": 1}}
BUILD, TRAIN = ("dump", "positions"), ("training_set", "checkpoint")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    with pytest.MonkeyPatch.context() as monkeypatch, publishing() as lichess:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{lichess.url}/standard")
        lichess.publish(f"{MONTH}.pgn.zst", zstandard.compress(random_pgn(20).encode()))
        datasets = prepare_data_folder(tmp_path_factory.mktemp("served"), monkeypatch)
        text = random_pgn(100)
        with (datasets / "dumps" / "large.pgn").open("w") as file:
            for _ in range(4000):
                file.write(text)
        (datasets / "dumps" / "killed.pgn").write_text(text * 150)
        (datasets / "dumps" / "other.pgn").write_text(random_pgn(20, first=100))
        with serving() as server:
            yield datasets, server


def list_finished_shards(out: Path) -> list[Path]:
    """Return the finished shards of an incomplete ingest."""
    return list((out / BUILDING).glob("train-*.parquet"))


def have_ended(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(process.pid) for process in processes)


def kill_run(workers: list[psutil.Process]) -> None:
    """Kill the process of a run, and wait until its child and workers have ended."""
    parent = workers[0].parent()
    assert parent is not None
    parent.kill()
    wait_for(lambda: have_ended(workers), 30)


def test_a_month_is_downloaded_and_becomes_a_network(served: tuple[Path, Server]) -> None:
    datasets, server = served
    for month, end in (("2013-04", "FAILURE"), ("2013-02", "SUCCESS")):
        form = {"games": month, "minutes": 0.02, "start_from_embedded": False, "report": False}
        run = server.launch(form)
        server.wait_until_ended(run, end)
        assert ("newest files are" in str(server.failures(run))) == (end == "FAILURE")
    assert (datasets / "positions" / MONTH / "manifest.json").exists()
    assert list(datasets.glob("checkpoints/*/checkpoint.json"))
    assert not list(datasets.glob("reports/*/*/report.json"))


def test_a_backfill_over_two_dumps_trains_once(served: tuple[Path, Server]) -> None:
    server = served[1]
    found = server.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]
    names = {node["assetKey"]["path"][-1] for node in found}
    # given partitions by name, Dagster backfills only assets with these partitions
    names -= {"tuned_checkpoint", "strength_report", "imitation"}
    network = {"name": "once", "minutes": 0.0, "more": {"steps": 4, "batch_size": 16}}
    splits = {"test_share": 0.2, "val_share": 0.2}
    build = {"workers": 1, "more": splits, "replace": True}
    parameters = {
        "assetSelection": [{"path": [name]} for name in sorted(names)],
        "partitionNames": ["small", "other"],
        "runConfigData": {
            "ops": {"checkpoint": {"config": network}, "positions": {"config": build}}
        },
    }
    query = """mutation($it: LaunchBackfillParams!) {
        launchPartitionBackfill(backfillParams: $it) { __typename
        ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
    launched = server.ask(query, it=parameters)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    status = """query($id: String!) {
        partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status
        runs { ... on Run { status stepStats { stepKey status } } } } } }"""

    def read_backfill() -> Any:
        return server.ask(status, id=launched["backfillId"])["partitionBackfillOrError"]

    ends = ("COMPLETED", "FAILED", "CANCELED")
    wait_for(lambda: read_backfill()["status"].startswith(ends), 900, lambda: str(read_backfill()))
    runs = read_backfill()["runs"]
    assert {run["status"] for run in runs} == {"SUCCESS"}
    steps = [(step["stepKey"], step["status"]) for run in runs for step in run["stepStats"]]
    for name, count in (("positions", 2), ("checkpoint", 1), ("accuracy_report", 1)):
        assert steps.count((name, "SUCCESS")) == count


def test_terminate_stops_ingest_and_its_workers(served: tuple[Path, Server]) -> None:
    datasets, server = served
    out = datasets / "positions" / "large"
    options = {"workers": 2, "more": {"chunk_mib": 8}}
    run = server.launch({"positions": options}, *BUILD, partition="large")
    wait_for(lambda: list_finished_shards(out), 120)
    workers = server.run_children()
    assert len(workers) >= 3
    server.terminate(run)
    wait_for(lambda: have_ended(workers), 30)
    server.wait_until_ended(run, "CANCELED", 30)
    assert not (out / "manifest.json").exists()
    for shard in list_finished_shards(out):
        assert pq.ParquetFile(shard).metadata.num_rows > 0


def test_a_training_that_is_terminated_or_killed_is_saved_and_resumed(
    served: tuple[Path, Server],
) -> None:
    datasets, server = served
    out = datasets / "checkpoints" / "long"
    metrics, card = out / "metrics.jsonl", out / "checkpoint.json"
    server.wait_until_ended(server.launch({}, *BUILD, partition="small"))
    run = server.launch({"checkpoint": LONG_TRAINING}, *TRAIN)
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 100, 90)
    workers = server.run_children()
    server.terminate(run)
    wait_for(lambda: have_ended(workers), 30)
    server.wait_until_ended(run, "CANCELED", 30)
    saved = json.loads(card.read_text())
    assert saved["finished"] is False
    assert saved["step"] > 0
    weights = {path.name for path in out.iterdir() if "safetensors" in path.name}
    assert weights == {entry["name"] for entry in saved["files"].values()}
    assert not list(out.glob("*.tmp"))
    before = metrics.stat().st_size
    run = server.launch({"checkpoint": LONG_TRAINING}, *TRAIN)
    wait_for(lambda: metrics.stat().st_size > before, 90)
    kill_run(server.run_children())
    server.wait_until_ended(run, "FAILURE", 30)
    assert json.loads(card.read_text())["step"] >= saved["step"]


def test_an_ingest_that_was_killed_makes_the_same_bytes_when_it_is_launched_again(
    served: tuple[Path, Server], tmp_path: Path
) -> None:
    datasets, server = served
    out = datasets / "positions" / "killed"
    options = {"positions": {"workers": 1, "more": {"chunk_mib": 1}}}
    run = server.launch(options, *BUILD, partition="killed")
    wait_for(lambda: list_finished_shards(out), 120)
    kill_run(server.run_children())
    server.wait_until_ended(run, "FAILURE", 30)
    assert not (out / "manifest.json").exists(), "the ingest ended before it was killed"
    finished = list_finished_shards(out)
    server.wait_until_ended(server.launch(options, *BUILD, partition="killed"))
    dump = str(datasets / "dumps" / "killed.pgn")
    ingest([dump], tmp_path / "undisturbed", IngestConfig(chunk_mib=1), workers=1)
    assert content(out) == content(tmp_path / "undisturbed")
    assert 0 < len(finished) < len(list(out.glob("train-*.parquet")))


def test_only_the_web_server_listens_and_only_on_this_machine(served: tuple[Path, Server]) -> None:
    server = served[1]
    listening = {
        (process.pid, connection.laddr)
        for process in (psutil.Process(server.pid), *server.descendants())
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {(server.pid, ("127.0.0.1", urlsplit(server.url).port))}


@pytest.mark.parametrize("how", ["ctrl-c", "terminated", "killed", "without its code server"])
def test_all_processes_end_with_the_ui(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = prepare_data_folder(tmp_path, monkeypatch) / "dumps" / "large.pgn"
    dump.write_text(random_pgn(100) * 1000)
    with serving() as server:
        server.launch({"positions": {"workers": 1}}, *BUILD, partition="large")
        wait_for(server.run_children, 60)
        tree = server.descendants()
        match how:
            case "ctrl-c":
                os.killpg(server.pid, signal.SIGINT)
            case "terminated":
                os.kill(server.pid, signal.SIGTERM)
            case "killed":
                os.kill(server.pid, signal.SIGKILL)
            case _:
                next(process for process in tree if "code-server" in process.cmdline()).kill()
        _, left = psutil.wait_procs(tree, 75)
        assert left == []
