"""How the UI's processes end: after Ctrl-C and after a kill none is left, whatever runs."""

import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from pipeline.defs import ui
from tests.pipeline.defs.conftest import prepared, random_pgn
from tests.pipeline.defs.served.server import serving, wait


def test_a_port_in_use_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["ui", "--port", port])
        assert ui.main() == 2
    assert f"port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "terminated", "killed", "without its code server"])
def test_no_process_is_left(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = prepared(tmp_path, monkeypatch) / "dumps" / "large.pgn"
    dump.write_text(random_pgn(100) * 1000)
    with serving() as server:
        selected = server.launch("register_dumps", {})
        wait(lambda: server.status(selected) == "SUCCESS", 60)
        server.launch(
            "build_positions",
            {"ops": {"positions": {"config": {"workers": 1}}}},
            {"dagster/partition": "small"},
        )
        wait(server.children, 60)
        tree = server.tree()
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
