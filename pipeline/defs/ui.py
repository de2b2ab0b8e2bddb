"""`python -m pipeline.defs.ui`: start Dagster's web UI with a guard, its daemon and code server.

`dg dev` starts the same three processes, but its web server accepts requests from any web page that
is open in a browser on this machine, so any page could launch runs. The guard refuses such
requests, which the UI does not need. Only the web server listens on a port, by default on
127.0.0.1. The code server listens on a Unix socket in a private folder.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import dagster as dg
import psutil
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from engine.errors import UserError
from pipeline.board.local_server import HOST, Guard, explain_refusal, listen
from pipeline.defs.launchpad.forms import SETTINGS_PATH, describe_settings, keep_field_order
from pipeline.defs.launchpad.options import OPTIONS_BY_ASSET

if TYPE_CHECKING:
    from uvicorn import Server

CODE_LOCATION = "fianchetto"
"""Dagster's name of the code server's definitions."""
STOP_SECONDS = 40.0
"""Seconds for all processes of the UI to end; a run's child may need 20 of them to save."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'"
)
"""Value of this header for reports and settings: no scripts, and nothing from elsewhere."""


class ReportFiles(StaticFiles):
    """Serves the folder of reports; their pages cannot run scripts or load resources."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file with security headers."""
        response = super().file_response(*args, **options)
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def find_refusal(scope: Scope) -> str:
    """Return why a request or a websocket is refused, or "" if it is allowed.

    GraphQL is accepted only as JSON by POST. A page of another origin must ask before it sends JSON
    (CORS preflight), and Dagster's server never allows it.
    """
    if reason := explain_refusal(scope):
        return reason
    if scope["type"] != "http" or "graphql" not in scope["path"].lower():
        return ""
    if "query" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        return "GraphQL in the URL is not executed: send it as JSON by POST"
    headers = Headers(scope=scope).getlist("content-type")
    content_types = [header.partition(";")[0].strip().lower() for header in headers]
    if scope["method"] == "POST" and content_types != ["application/json"]:
        return "GraphQL by POST must be application/json"
    return ""


def open_home(instance: dg.DagsterInstance, request: Request) -> Response:
    """Redirect to the newest run, or to the form of `first_network` if there are no runs."""
    runs = instance.get_run_records(limit=1)
    form = f"/locations/{CODE_LOCATION}/jobs/first_network/playground"
    return RedirectResponse(f"/runs/{runs[0].dagster_run.run_id}" if runs else form)


def show_settings(request: Request) -> Response:
    """Return the page that lists the settings of the assets' forms."""
    return HTMLResponse(
        describe_settings(OPTIONS_BY_ASSET),
        headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY},
    )


def main() -> int:
    """Serve the UI; return 0 after Ctrl-C or SIGTERM, 1 if a process died, 2 on an error."""
    parser = argparse.ArgumentParser(
        description="Serve Dagster's web UI on this machine until Ctrl-C."
    )
    parser.add_argument("--port", type=int, default=3000, help="port of the UI (3000)")
    parser.add_argument(
        "--host", default=HOST, help="address to listen on (127.0.0.1); 0.0.0.0 in a container"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with listen(options.port, "`make ui PORT=3001`", options.host) as listener:
            serve(listener)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 0
    return 1


def serve(listener: socket.socket) -> None:
    """Serve the UI until a signal arrives or a process dies, then stop all processes."""
    import uvicorn

    # Private modules of a pinned version: Dagster has no public way to wrap its web application.
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_webserver.app import create_app_from_workspace_process_context

    from pipeline.defs.resources import DataFolder
    from pipeline.defs.sensor import register_dumps

    keep_field_order()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fianchetto-ui-")))
        instance = stack.enter_context(dg.DagsterInstance.get())
        instance.optimize_for_webserver(
            statement_timeout=15_000, pool_recycle=3600, max_overflow=20
        )  # as dagster-webserver does
        register_dumps(instance, DataFolder())
        address, workspace = folder / "code-server", folder / "workspace.yaml"
        workspace.write_text(
            f"load_from: [{{grpc_server: {{socket: {address}, location_name: {CODE_LOCATION}}}}}]"
        )
        command = ("code-server", "start", "-s", str(address), "-m", "pipeline.definitions")
        options = ("--location-name", CODE_LOCATION, "--log-level", "warning")
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(stop, processes)
        processes.append(start_module("dagster", *command, *options))
        while not address.exists():
            if processes[0].poll() is not None:
                return
            time.sleep(0.1)
        processes.append(start_module("dagster._daemon", "run", "--workspace", str(workspace)))
        context = stack.enter_context(
            WorkspaceProcessContext(instance, WorkspaceFileTarget([str(workspace)]))
        )
        reports = DataFolder().path / "reports"
        reports.mkdir(parents=True, exist_ok=True)
        app = create_app_from_workspace_process_context(context)
        app.routes[:0] = [
            Route("/", partial(open_home, instance)),
            Route(SETTINGS_PATH, show_settings),
            Mount("/reports", ReportFiles(directory=reports)),
        ]
        config = uvicorn.Config(
            Guard(app, find_refusal),
            log_level="warning",
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        threading.Thread(target=_stop_when_dead, args=(server, processes), daemon=True).start()
        sys.stdout.write(
            f"Dagster is on http://{HOST}:{listener.getsockname()[1]} (Ctrl-C stops it)\n"
        )
        sys.stdout.flush()
        server.run([listener])


def _stop_when_dead(server: "Server", processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    while all(process.poll() is None for process in processes):
        time.sleep(1.0)
    server.should_exit = True


def start_module(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Run a module as a program, which on Linux ends with this process.

    `python -m` is used because the module's script may not be in Python's folder (Debian, `pip
    install --user`).
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(command, preexec_fn=_die_with_parent)


def stop(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Stop processes and their descendants together; kill those left after STOP_SECONDS."""
    tree: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            tree += [*parent.children(recursive=True), parent]
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            # a run's child has its own session, and the run stops it
            if os.getsid(member.pid) == os.getsid(0):
                member.terminate()
    _, survivors = psutil.wait_procs(tree, STOP_SECONDS)
    for survivor in survivors:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()


def _die_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
