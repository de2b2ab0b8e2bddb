"""Dagster's state in a real PostgreSQL, with the settings of `make ui-postgres`."""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from pipeline.defs.resources import DataFolder
from pipeline.defs.sensor import register_dumps
from tests.conftest import REPOSITORY
from tests.pipeline.defs.conftest import DUMP_TO_REPORT, execute_assets, prepare_data_folder

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


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a PostgreSQL server with a password on a free local port."""
    user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL's programs refuse to run as root
    secret, data = tmp_path / "secret", tmp_path / "cluster"
    secret.write_text(PASSWORD)
    data.mkdir()
    if user:
        for path in (secret, data):
            shutil.chown(path, user)
        for folder in [tmp_path, *tmp_path.parents]:  # let `postgres` enter pytest's folders
            if folder.stat().st_uid == os.geteuid() and str(folder) not in ("/", "/tmp"):
                folder.chmod(folder.stat().st_mode | 0o011)

    def run_program(name: str, *options: str, check: bool = True) -> None:
        command = [str(PROGRAMS[-1].with_name(name)), "-D", str(data), *options]
        subprocess.run(command, user=user, check=check, capture_output=True, timeout=120, cwd="/")

    run_program("initdb", "-U", "dagster", "-A", "scram-sha-256", f"--pwfile={secret}")
    secret.unlink()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    run_program("pg_ctl", "-o", options, "-l", str(data / "log"), "-w", "start")
    settings = {"PGHOST": "127.0.0.1", "PGPORT": port, "PGDATABASE": "dagster", "PGUSER": "dagster"}
    for name, value in (settings | {"PGPASSWORD": PASSWORD}).items():
        monkeypatch.setenv(name, value)
    try:
        subprocess.run([PROGRAMS[-1].with_name("createdb"), "dagster"], check=True, timeout=60)
        yield
    finally:
        run_program("pg_ctl", "-m", "immediate", "-w", "stop", check=False)


@pytest.mark.usefixtures("database")
def test_runs_and_partitions_are_stored_in_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dagster"
    folder.mkdir()
    datasets = prepare_data_folder(folder, monkeypatch)
    home = folder / "home"
    with (home / "dagster.yaml").open("a") as settings:  # as `make ui-postgres` does
        settings.write((REPOSITORY / "dagster_home" / "dagster-postgres.yaml").read_text())
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for name in ("run_storage", "event_log_storage", "schedule_storage"):
            assert type(getattr(instance, name)).__name__.startswith("Postgres")
        assert register_dumps(instance, DataFolder()) == ["small"]
        result = execute_assets(
            DUMP_TO_REPORT[:2], instance, {"positions": {"workers": 1}}, "small"
        )
        assert result.success
    assert (datasets / "positions" / "small" / "manifest.json").exists()
    # a new instance reads the same state
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert [run.run_id for run in instance.get_runs()] == [result.run_id]
        assert instance.get_dynamic_partitions("dumps") == ["small"]
    assert not list(home.rglob("*.db")), "no state is in SQLite"
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not any(PASSWORD in path.read_text(errors="replace") for path in files)
