"""Dagster's instance on a real PostgreSQL, by the file that `make ui-postgres` adds. Slow; needs
Debian's postgresql."""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets
from tests.pipeline.defs.conftest import ROOT, execute, prepared

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
PASSWORD = "not in any file"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PROGRAMS, reason="PostgreSQL is not installed: apt-get install postgresql"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("dagster_postgres") is None,
        reason="dagster-postgres is not installed: fianchetto[postgres]",
    ),
]


def server_program(
    name: str, *words: str, user: str | None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one of PostgreSQL's programs, which refuse to be root, as another user where need be."""
    command = [str(PROGRAMS[-1].with_name(name)), *words]
    return subprocess.run(
        command, user=user, check=check, capture_output=True, text=True, timeout=120, cwd="/"
    )


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start a private cluster on a free port of the loopback, with a password, and give its
    folder."""
    user = "postgres" if os.geteuid() == 0 else None
    secret, data = tmp_path / "secret", tmp_path / "cluster"
    secret.write_text(PASSWORD)
    data.mkdir()
    if user:
        for path in (secret, data):
            shutil.chown(path, user)
        for folder in [tmp_path, *tmp_path.parents]:  # pytest's folders are the owner's alone
            if folder.stat().st_uid == os.geteuid() and str(folder) not in ("/", "/tmp"):
                folder.chmod(folder.stat().st_mode | 0o011)
    server_program(
        "initdb",
        "-D",
        str(data),
        "-U",
        "dagster",
        "-A",
        "scram-sha-256",
        f"--pwfile={secret}",
        user=user,
    )
    secret.unlink()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    server_program(
        "pg_ctl", "-D", str(data), "-o", options, "-l", str(data / "log"), "-w", "start", user=user
    )
    settings = {"PGHOST": "127.0.0.1", "PGPORT": port, "PGDATABASE": "dagster", "PGUSER": "dagster"}
    for name, value in (settings | {"PGPASSWORD": PASSWORD}).items():
        monkeypatch.setenv(name, value)
    try:
        subprocess.run([PROGRAMS[-1].with_name("createdb"), "dagster"], check=True, timeout=60)
        yield data
    finally:
        server_program(
            "pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop", user=user, check=False
        )


def asked(statement: str) -> str:
    """Ask the database itself."""
    said = subprocess.run(
        [PROGRAMS[-1].with_name("psql"), "-At", "-c", statement],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return said.stdout.strip()


def test_a_run_is_kept_in_postgres(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dagster"
    folder.mkdir()
    datasets = prepared(folder, monkeypatch)
    home = folder / "home"
    with (home / "dagster.yaml").open("a") as settings:  # as the Makefile puts them together
        settings.write((ROOT / "dagster_home" / "dagster-postgres.yaml").read_text())
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert type(instance.run_storage).__name__ == "PostgresRunStorage"
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        assert type(instance.schedule_storage).__name__ == "PostgresScheduleStorage"
        assert register(instance, Datasets()) == ["small"]
        result = execute("build_positions", instance, {"positions": {"workers": 1}}, "small")
        assert result.success
        assert instance.get_runs()[0].status == dg.DagsterRunStatus.SUCCESS
    assert (datasets / "positions" / "small" / "manifest.json").exists()
    assert asked(f"select status from runs where run_id = '{result.run_id}'") == "SUCCESS"
    assert asked("select partition from dynamic_partitions") == "small"
    assert (
        int(
            asked(
                "select count(*) from event_logs where dagster_event_type = 'ASSET_MATERIALIZATION'"
            )
        )
        == 2
    )
    # another process would find the same
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert [run.run_id for run in instance.get_runs()] == [result.run_id]
    assert not list(home.rglob("*.db")), "nothing of it went to SQLite"
    assert not any(
        PASSWORD in path.read_text(errors="replace") for path in home.rglob("*") if path.is_file()
    )
