"""A real S3 server on loopback: OpenStack Swift with its S3 API, four daemons, one user whose
secret is checked."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = {
    "AWS_ACCESS_KEY_ID": "test:tester",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
PIPELINE = "catch_errors gatekeeper healthcheck s3api tempauth bulk slo dlo proxy-server"
KINDS = {"account": "account", "container": "container", "object": "obj", "proxy": "proxy"}

RINGS = """
import sys
from swift.common.ring import RingBuilder
for kind, port in zip(("account", "container", "object"), map(int, sys.argv[2:])):
    ring = RingBuilder(4, 1, 1)
    place = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1.0}
    ring.add_dev(place | {"replication_ip": "127.0.0.1", "replication_port": port})
    ring.rebalance()
    ring.get_ring().save(f"{sys.argv[1]}/{kind}.ring.gz")
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def configuration(folder: Path, kind: str, port: int) -> str:
    """Give one daemon's configuration."""
    common = (
        f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 0\nswift_dir = {folder}\n"
    )
    common += (
        f"devices = {folder}\nmount_check = false\nuser = "
        f"{os.environ.get('USER', 'root')}\nlog_level = ERROR\n"
    )
    if kind != "proxy":
        return (
            common + f"[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = "
            f"egg:swift#{kind}\n"
        )
    filters = "".join(
        f"[filter:{name}]\nuse = egg:swift#{name}\n"
        for name in PIPELINE.split()[:-1]
        if name != "tempauth"
    )
    app = (
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = "
        "true\nallow_account_management = true\n"
    )
    user = "[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = testing .admin\n"
    return f"{common}[pipeline:main]\npipeline = {PIPELINE}\n{app}{user}{filters}"


@contextmanager
def serving_s3(folder: Path) -> Iterator[str]:
    """Serve S3 from a folder for as long as the block lasts, and give the address."""
    (folder / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = a\nswift_hash_path_prefix = "
        "b\n[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    ports = {kind: free_port() for kind in KINDS}
    rings = [str(ports[kind]) for kind in ("account", "container", "object")]
    subprocess.run([sys.executable, "-c", RINGS, str(folder), *rings], check=True)
    daemons = []
    try:
        for kind, module in KINDS.items():
            path = folder / f"{kind}.conf"
            path.write_text(configuration(folder, kind, ports[kind]))
            code = f"from swift.{module}.server import main; main()"
            with (folder / f"{kind}.log").open("wb") as log:
                command = [sys.executable, "-c", code, str(path)]
                daemons.append(
                    subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                )
        for kind, port in ports.items():
            wait_for(port, daemons, folder / f"{kind}.log")
        yield f"http://127.0.0.1:{ports['proxy']}"
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()


def wait_for(port: int, daemons: list["subprocess.Popen[bytes]"], log: Path) -> None:
    """Wait until something listens on a port."""
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert all(daemon.poll() is None for daemon in daemons), log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())
