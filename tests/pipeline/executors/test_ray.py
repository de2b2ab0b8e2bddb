"""Ray behind the seam: the promise of LocalEngine, the same bytes whatever dies. Slow; needs
fianchetto[ray]."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.progress import Tick
from pipeline.errors import IngestError
from pipeline.executors.by_name import engine_of
from pipeline.executors.local import Failure
from pipeline.executors.ray import RayEngine
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.executors import jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: fianchetto[ray]"
    ),
]

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
RAY = re.compile(r"/ray/|ray::|raylet|gcs_server")


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 8 MB."""
    path = tmp_path_factory.mktemp("ray") / "games.pgn"
    games = "".join(datasets.random_game(seed) for seed in range(100))
    path.write_text(games * 22)
    return path


@pytest.fixture(scope="module")
def undisturbed(dump: Path) -> dict[str, str]:
    """Give the bytes that the local engine makes."""
    ingest([str(dump)], dump.parent / "undisturbed", CONFIG, workers=1)
    return datasets.content(dump.parent / "undisturbed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each on this machine, the first one the head."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


def ray_processes() -> list[psutil.Process]:
    """Give the processes of Ray below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and RAY.search(" ".join(child.cmdline())):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def titles(process: psutil.Process) -> str:
    """Give a process's command line, into which Ray writes what it does; nothing of one that has
    ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def tasks_running() -> list[psutil.Process]:
    """Give Ray's workers of this machine that are at work now: it writes the function's name as
    their title."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "ray::_work" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


class Killer:
    """A progress callback that kills Ray workers in the middle of their work, so many times."""

    def __init__(self, times: int) -> None:
        self.left, self.killed = times, []

    def __call__(self, _: Tick) -> None:
        if self.left and (running := tasks_running()):
            victim = running[0]
            victim.send_signal(signal.SIGKILL)
            self.killed.append(victim.pid)
            self.left -= 1


def test_every_item_is_answered_once_and_errors_are_results() -> None:
    engine = RayEngine(workers=2)
    assert sorted(engine.map(jobs.square, range(40))) == [
        (index, "ok", index * index) for index in range(40)
    ]
    results = {
        index: (status, value) for index, status, value in engine.map(jobs.inverse, [1, 0, 2])
    }
    assert (results[0], results[2]) == (("ok", 1.0), ("ok", 0.5))
    status, failure = results[1]
    assert status == "error"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message) == ("ZeroDivisionError", "division by zero")
    assert ray_processes() == [], "the embedded Ray is gone when its work is done"


def test_items_are_taken_a_window_at_a_time() -> None:
    taken = answered = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield number

    for _ in RayEngine(workers=2).map(jobs.square, items()):
        answered += 1
        assert taken <= answered + 5
    assert answered == 200


def test_the_item_of_a_killed_worker_is_done_again_and_poison_is_lost(tmp_path: Path) -> None:
    (tmp_path / "tries").mkdir()
    engine = RayEngine(workers=2)
    items = [(number, str(tmp_path / "two") if number == 2 else "") for number in range(6)]
    results = sorted(engine.map(jobs.die_once, items))
    assert (tmp_path / "two").exists(), "no worker was killed"
    assert results == [(index, "ok", index) for index in range(6)]
    poisoned = [(number, str(tmp_path / "tries")) for number in range(8)]
    found = {index: (status, value) for index, status, value in engine.map(jobs.poison, poisoned)}
    assert found.pop(5) == ("lost", None)
    assert [path.name.partition("-")[0] for path in (tmp_path / "tries").iterdir()].count("5") == 3
    assert found == {index: ("ok", index) for index in range(8) if index != 5}


def test_closing_stops_what_runs() -> None:
    stream = RayEngine(workers=2).map(jobs.slow, [1, 0, 1, 1, 1, 1])
    next(stream)
    stream.close()
    assert ray_processes() == []


def test_what_is_cancelled_ends_though_nobody_has_taken_it_up() -> None:
    answered: list[int] = []
    for index, _, _ in RayEngine(workers=1).map(jobs.slow, [1, 0, 0], lambda: bool(answered)):
        answered.append(index)
    assert answered == [0]
    assert ray_processes() == []


def test_the_embedded_ray_listens_on_loopback_only() -> None:
    stream = RayEngine(workers=1).map(jobs.square, range(3))
    next(stream)
    listening = {
        connection.laddr.ip
        for process in ray_processes()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    stream.close()
    assert listening
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_the_drivers_answer_to_sigterm_stays_its_own() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        stream = RayEngine(workers=1).map(jobs.square, range(3))
        next(stream)
        assert signal.getsignal(signal.SIGTERM) is mine
        stream.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ingest_makes_the_same_bytes_though_workers_are_killed(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    ingest([str(dump)], tmp_path / "plain", CONFIG, engine=engine_of("ray", 2))
    assert datasets.content(tmp_path / "plain") == undisturbed
    killer = Killer(2)
    ingest([str(dump)], tmp_path / "killed", CONFIG, engine=engine_of("ray", 2), progress=killer)
    assert len(killer.killed) == 2
    assert datasets.content(tmp_path / "killed") == undisturbed


def test_two_nodes_share_the_work_and_one_of_them_is_lost(
    cluster: Any, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    address = f"ray:{cluster.address}"
    raylets = {value for _, _, value in engine_of(address).map(jobs.parent, range(24))}
    assert len(raylets) == 2, "each node's agent ran some"
    lost = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    killed: list[str] = []

    def kill(_: Tick) -> None:
        """Kill all processes of the node at once, when one of them is at work."""
        if killed:
            return
        began = time.monotonic()
        raylet = psutil.Process(lost.all_processes["raylet"][0].process.pid)
        while time.monotonic() < began + 60:
            tree = [raylet, *raylet.children(recursive=True)]
            names = [titles(process) for process in tree]
            if any("ray::_work" in name for name in names):
                break
            time.sleep(0.02)
        killed.extend(names)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        cluster.remove_node(lost, allow_graceful=False)  # which the cluster's own accounts want

    ingest([str(dump)], tmp_path / "out", CONFIG, engine=engine_of(address), progress=kill)
    assert any("ray::_work" in name for name in killed), "a chunk was in hand there"
    assert datasets.content(tmp_path / "out") == undisturbed


@pytest.fixture
def client_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Serve a cluster's client server, which asks for a token; give its port."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        port, clients = free_port(), free_port()
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--num-cpus",
            "2",
        ]
        command += [
            "--include-dashboard",
            "false",
            "--node-ip-address",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--ray-client-server-port", str(clients), "--temp-dir", folder]
        environment = os.environ | {
            "PYTHONPATH": str(REPOSITORY),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        ) as head:
            end = time.monotonic() + 120
            while True:
                try:
                    socket.create_connection(("127.0.0.1", clients), 1).close()
                    break
                except OSError:
                    assert head.poll() is None, "it did not start"
                    assert time.monotonic() < end
                    time.sleep(0.2)
            try:
                yield clients
            finally:
                head.terminate()


def free_port() -> int:
    """Give a port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_cluster_is_used_from_outside_through_its_client_server(
    client_port: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "ingest",
        str(dump),
        "--engine",
        f"ray://127.0.0.1:{client_port}",
    ]
    command += ["--set", "chunk_mib=1", "--set", "test_share=0.2", "--out"]
    done = subprocess.run(
        [*command, str(tmp_path / "out")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert datasets.content(tmp_path / "out") == undisturbed
    without = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    refused = subprocess.run(
        [*command, str(tmp_path / "refused")],
        cwd=REPOSITORY,
        env=without,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2, refused.stdout
    assert "set RAY_AUTH_MODE=token here as on the cluster" in refused.stderr


def test_a_cluster_that_is_not_there_is_said_so() -> None:
    for name in ("ray:127.0.0.1:1", "ray://127.0.0.1:1", "ray:nowhere", "ray:127.0.0.1:123456"):
        with pytest.raises(IngestError, match="cannot be reached"):
            list(engine_of(name).map(jobs.square, [1]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_driver_leaves_no_ray_and_another_engine_finishes(
    number: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-c",
        "from pipeline.cli.main import main; main()",
        "ingest",
        str(dump),
        "--out",
        str(out),
    ]
    command += [
        "--engine",
        "ray",
        "--workers",
        "2",
        "--set",
        "chunk_mib=1",
        "--set",
        "test_share=0.2",
    ]
    driver = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not list(out.glob(".building/parts/[0-9]*.json")):
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    below = psutil.Process(driver.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in below)
    driver.send_signal(number)
    _, said = driver.communicate(timeout=120)
    if number == signal.SIGTERM:
        assert driver.returncode == 128 + signal.SIGTERM, said
        assert "run the same command to continue" in said
    else:
        assert driver.returncode == -signal.SIGKILL
    # Ray's agents look for their dead cluster for a minute
    _, alive = psutil.wait_procs(below, timeout=240)
    assert alive == []
    assert not (out / "manifest.json").exists(), "it was finished before it could be stopped"
    ingest([str(dump)], out, CONFIG, workers=1)
    assert datasets.content(out) == undisturbed
