"""The Ray engine has the local engine's guarantees, and the same results whatever is killed."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.progress import Tick
from pipeline.errors import IngestError
from pipeline.executors.by_name import make_engine
from pipeline.executors.ray import RayEngine
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.executors import guarantees, jobs
from tests.pipeline.storage.swift import free_port
from tests.processes import read_command_line
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: fianchetto[ray]"
    ),
]

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
SETTINGS = ["--set", "chunk_mib=1", "--set", "test_share=0.2"]
RAY = re.compile(r"/ray/|ray::|raylet|gcs_server")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a dump of 8 MB."""
    path = tmp_path_factory.mktemp("ray") / "games.pgn"
    path.write_text("".join(datasets.random_game(seed) for seed in range(100)) * 22)
    return path


@pytest.fixture(scope="module")
def undisturbed(dump: Path) -> dict[str, str]:
    """Return the hashes of the files that an ingest on the local engine writes."""
    ingest([str(dump)], dump.parent / "undisturbed", CONFIG, workers=1)
    return datasets.content(dump.parent / "undisturbed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster of two nodes with one core each on this machine."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def list_ray_processes() -> list[psutil.Process]:
    """Return Ray's processes below this one."""
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if RAY.search(read_command_line(one))
    ]


def test_the_guarantees_hold_and_the_embedded_ray_ends_with_the_work(tmp_path: Path) -> None:
    engine = RayEngine(workers=2)
    guarantees.check_results(engine, 5)
    guarantees.check_retries(engine, tmp_path)
    assert list_ray_processes() == []


def test_closing_and_cancelling_stop_running_work() -> None:
    stream = RayEngine(workers=2).map(jobs.sleep, [1, 0, 1, 1, 1, 1])
    next(stream)
    stream.close()
    assert list_ray_processes() == []
    answered: list[int] = []
    for index, _, _ in RayEngine(workers=1).map(jobs.sleep, [1, 0, 0], lambda: bool(answered)):
        answered.append(index)
    assert answered == [0]
    assert list_ray_processes() == []


def test_the_embedded_ray_listens_on_loopback_and_restores_signals_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(number: int, frame: object) -> None: ...

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = signal.signal(signal.SIGTERM, handler)
    try:
        stream = RayEngine(workers=1).map(jobs.get_variables, [["OMP_NUM_THREADS"]] * 3)
        assert next(stream)[2] == ("1",)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    listening = {
        connection.laddr.ip
        for process in list_ray_processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    stream.close()
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_ingest_writes_the_same_bytes_if_workers_are_killed(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(_: Tick) -> None:
        """Kill two workers while they work."""
        working = [
            process
            for process in list_ray_processes()
            if "ray::_run_versioned_item" in read_command_line(process)
        ]
        if len(killed) < 2 and working:
            working[0].send_signal(signal.SIGKILL)
            killed.append(working[0].pid)

    ingest([str(dump)], tmp_path / "out", CONFIG, engine=make_engine("ray", 2), progress=kill)
    assert len(killed) == 2
    assert datasets.content(tmp_path / "out") == undisturbed


def test_nodes_share_the_work_and_a_lost_node_changes_nothing(
    cluster: Any, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    address = f"ray:{cluster.address}"
    raylets = {value for _, _, value in make_engine(address).map(jobs.get_parent_pid, range(24))}
    assert len(raylets) == 2, "the agents of both nodes ran some"
    lost = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    raylet = psutil.Process(lost.all_processes["raylet"][0].process.pid)
    killed: list[psutil.Process] = []

    def kill(_: Tick) -> None:
        """Kill all processes of the node at once, while one of them works."""
        if not killed:
            until(
                lambda: any(
                    "ray::_run_versioned_item" in read_command_line(one)
                    for one in raylet.children(True)
                )
            )
            killed.extend([raylet, *raylet.children(recursive=True)])
            for process in killed:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            cluster.remove_node(lost, allow_graceful=False)

    ingest([str(dump)], tmp_path / "out", CONFIG, engine=make_engine(address), progress=kill)
    assert killed
    assert datasets.content(tmp_path / "out") == undisturbed


@pytest.fixture
def client_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Start a cluster whose client server needs a token; yield its port."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        port, clients = free_port(), free_port()
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        words += ["--num-cpus", "2", "--include-dashboard", "false", "--temp-dir", folder]
        words += ["--node-ip-address", "127.0.0.1", "--port", str(port)]
        words += ["--ray-client-server-port", str(clients)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as head:

            def is_listening() -> bool:
                assert head.poll() is None, "it did not start"
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", clients), 1).close()
                    return True
                return False

            until(is_listening)
            try:
                yield clients
            finally:
                head.terminate()


def test_a_cluster_is_used_through_its_client_server(
    client_port: int,
    dump: Path,
    undisturbed: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [sys.executable, "-m", "pipeline", "ingest", str(dump), *SETTINGS]
    words += ["--engine", f"ray://127.0.0.1:{client_port}", "--out"]
    done = subprocess.run([*words, str(tmp_path / "out")], cwd=REPOSITORY, check=False)
    assert done.returncode == 0
    assert datasets.content(tmp_path / "out") == undisturbed
    monkeypatch.delenv("RAY_AUTH_MODE")
    refused = subprocess.run(
        [*words, str(tmp_path / "refused")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2, refused.stdout
    assert "RAY_AUTH_MODE=token, set it here" in refused.stderr


@pytest.mark.parametrize("name", ["ray:127.0.0.1:1", "ray://127.0.0.1:1", "ray:nowhere"])
def test_a_missing_cluster_is_reported(name: str) -> None:
    with pytest.raises(IngestError, match="cannot be reached"):
        list(make_engine(name).map(jobs.square, [1]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_driver_leaves_no_process_and_another_engine_finishes_the_work(
    number: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "pipeline", "ingest", str(dump), "--out", str(out)]
    words += ["--engine", "ray", "--workers", "2", *SETTINGS]
    driver = subprocess.Popen(words, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    until(lambda: any(out.glob(".building/parts/[0-9]*.json")) or driver.poll() is not None)
    below = psutil.Process(driver.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in below)
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=120)
    if number == signal.SIGTERM:
        assert driver.returncode == 128 + signal.SIGTERM, errors
        assert "run the same command to continue" in errors
    else:
        assert driver.returncode == -signal.SIGKILL
    # Ray's agents look for their dead cluster for a minute
    _, alive = psutil.wait_procs(below, timeout=240)
    assert alive == []
    assert not (out / "manifest.json").exists(), "it finished before it was stopped"
    ingest([str(dump)], out, CONFIG, workers=1)
    assert datasets.content(out) == undisturbed
