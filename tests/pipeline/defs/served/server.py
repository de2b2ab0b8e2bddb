"""The UI as `make ui` starts it, on a free local port."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from pipeline.defs.ui import CODE_LOCATION
from tests.conftest import REPOSITORY


@dataclass(frozen=True)
class Server:
    """A running UI."""

    url: str
    pid: int

    def ask(self, query: str, **variables: Any) -> Any:
        """Execute a GraphQL query and return its data."""
        answer = requests.post(
            f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=30
        ).json()
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def launch(self, config: dict[str, Any], *assets: str, partition: str = "") -> str:
        """Materialize assets, or run `first_network` if none are given; return the run's ID."""
        selector: dict[str, Any] = {"jobName": "__ASSET_JOB" if assets else "first_network"}
        selector |= {"repositoryLocationName": CODE_LOCATION, "repositoryName": "__repository__"}
        if assets:
            selector["assetSelection"] = [{"path": [name]} for name in assets]
            config = {"ops": {name: {"config": values} for name, values in config.items()}}
        tags = [{"key": "dagster/partition", "value": partition}] if partition else []
        parameters = {
            "selector": selector,
            "runConfigData": config,
            "executionMetadata": {"tags": tags},
        }
        query = """mutation($it: ExecutionParams!) { launchRun(executionParams: $it) { __typename
            ... on LaunchRunSuccess { run { id } } ... on PythonError { message }
            ... on RunConfigValidationInvalid { errors { message } } } }"""
        answer = self.ask(query, it=parameters)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["id"])

    def wait_until_ended(self, run: str, status: str = "SUCCESS", seconds: float = 300) -> None:
        """Wait until a run has ended with this status."""
        ends = {"SUCCESS", "FAILURE", "CANCELED"}
        wait_for(lambda: self.status(run) in ends, seconds, lambda: self.status(run))
        assert self.status(run) == status, self.failures(run)

    def status(self, run: str) -> str:
        """Return a run's status."""
        query = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
        return str(self.ask(query, id=run)["runOrError"]["status"])

    def failures(self, run: str) -> list[dict[str, Any]]:
        """Return the failure events of a run's steps, and of its cancellation."""
        query = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
            ... on ExecutionStepFailureEvent { error { message stack cause { message } }
                failureMetadata { description } }
            ... on RunCanceledEvent { error { message stack } } } } } }"""
        events = self.ask(query, id=run)["logsForRun"]["events"]
        return [event for event in events if event]

    def terminate(self, run: str) -> None:
        """Terminate a run as the button Terminate does."""
        query = """mutation($id: String!) {
            terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename } }"""
        assert self.ask(query, id=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def graph_path(self) -> str:
        """Return the URL path of the asset graph with all groups expanded."""
        nodes = self.ask("{ assetNodes { groupName } }")["assetNodes"]
        groups = sorted({f"global@global:{node['groupName']}" for node in nodes})
        return "/asset-groups?expanded=" + ",".join(groups)

    def descendants(self) -> list[psutil.Process]:
        """List all processes that the server or its children started."""
        processes: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        return processes

    def run_children(self) -> list[psutil.Process]:
        """List the child processes of runs, and the processes that those started."""
        found = []
        for process in self.descendants():
            try:
                if "pipeline.defs.child" in process.cmdline():
                    found += [process, *process.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found


@contextmanager
def serving() -> Iterator[Server]:
    """Start the UI with the environment's DAGSTER_HOME, and check that all its processes end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    log = Path(os.environ["DAGSTER_HOME"]) / "ui.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.defs.ui", "--port", str(port)],
            cwd=REPOSITORY,
            env=os.environ | {"VIRTUAL_ENV": sys.prefix, "PATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_reset_signals,
        )
    server = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        wait_for(lambda: _is_ready(server), 90, lambda: log.read_text()[-3000:])
        yield server
    finally:
        tree = server.descendants() if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        _, alive = psutil.wait_procs(tree, 30)
        for survivor in alive:
            survivor.kill()
        assert not alive, f"these processes did not end: {alive}"


def wait_for(
    condition: Callable[[], Any], seconds: float, explain: Callable[[], str] = lambda: ""
) -> Any:
    """Wait until `condition` returns a true value, and return it."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"timeout after {seconds} s: {explain()}"
        time.sleep(0.1)
    return value


def _is_ready(server: Server) -> bool:
    try:
        return bool(server.ask("{ assetNodes { id } }")["assetNodes"])
    except requests.ConnectionError:
        return False


def _reset_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
