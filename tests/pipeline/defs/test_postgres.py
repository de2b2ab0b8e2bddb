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
from tests.pipeline.defs.conftest import CHAIN, ROOT, execute, prepared

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
    user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL's programs refuse to be root
    secret, data = tmp_path / "secret", tmp_path / "cluster"
    secret.write_text(PASSWORD)
    data.mkdir()
    if user:
        for path in (secret, data):
            shutil.chown(path, user)
        for folder in [tmp_path, *tmp_path.parents]:  # pytest's folders are the owner's alone
            if folder.stat().st_uid == os.geteuid() and str(folder) not in ("/", "/tmp"):
                folder.chmod(folder.stat().st_mode | 0o011)

    def call(name: str, *words: str, check: bool = True) -> None:
        command = [str(PROGRAMS[-1].with_name(name)), "-D", str(data), *words]
        subprocess.run(command, user=user, check=check, capture_output=True, timeout=120, cwd="/")

    call("initdb", "-U", "dagster", "-A", "scram-sha-256", f"--pwfile={secret}")
    secret.unlink()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
    call("pg_ctl", "-o", options, "-l", str(data / "log"), "-w", "start")
    settings = {"PGHOST": "127.0.0.1", "PGPORT": port, "PGDATABASE": "dagster", "PGUSER": "dagster"}
    for name, value in (settings | {"PGPASSWORD": PASSWORD}).items():
        monkeypatch.setenv(name, value)
    try:
        subprocess.run([PROGRAMS[-1].with_name("createdb"), "dagster"], check=True, timeout=60)
        yield
    finally:
        call("pg_ctl", "-m", "immediate", "-w", "stop", check=False)


@pytest.mark.usefixtures("database")
def test_a_run_is_kept_in_postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dagster"
    folder.mkdir()
    datasets = prepared(folder, monkeypatch)
    home = folder / "home"
    with (home / "dagster.yaml").open("a") as settings:  # as the Makefile puts them together
        settings.write((ROOT / "dagster_home" / "dagster-postgres.yaml").read_text())
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for storage in (
            instance.run_storage,
            instance.event_log_storage,
            instance.schedule_storage,
        ):
            assert type(storage).__name__.startswith("Postgres")
        assert register_dumps(instance, DataFolder()) == ["small"]
        result = execute(CHAIN[:2], instance, {"positions": {"workers": 1}}, "small")
        assert result.success
    assert (datasets / "positions" / "small" / "manifest.json").exists()
    # another process would find the same
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert [run.run_id for run in instance.get_runs()] == [result.run_id]
        assert instance.get_dynamic_partitions("dumps") == ["small"]
    assert not list(home.rglob("*.db")), "nothing of it went to SQLite"
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not any(PASSWORD in path.read_text(errors="replace") for path in files)
