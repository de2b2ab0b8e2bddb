"""Run a real S3 server on loopback: OpenStack Swift with its S3 API."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import until

USER = {
    "AWS_ACCESS_KEY_ID": "test:tester",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
MODULES = {"account": "account", "container": "container", "object": "obj", "proxy": "proxy"}
COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
devices = {folder}
mount_check = false
user = {user}
log_level = ERROR
"""
SERVER = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "s3api", "tempauth", "bulk", "slo", "dlo")
PROXY = f"""[pipeline:main]
pipeline = {" ".join(FILTERS)} proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
""" + "".join(
    f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in FILTERS if name != "tempauth"
)
PROXY += "[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = testing .admin\n"
HASHES = "[swift-hash]\nswift_hash_path_suffix = a\nswift_hash_path_prefix = b\n"
HASHES += "[storage-policy:0]\nname = one\ndefault = yes\n"
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


@contextmanager
def serving_s3(folder: Path) -> Iterator[str]:
    """Serve S3 from a folder during the block; yield the server's URL."""
    (folder / "d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(HASHES)
    ports = {kind: free_port() for kind in MODULES}
    rings = [str(ports[kind]) for kind in ("account", "container", "object")]
    subprocess.run([sys.executable, "-c", RINGS, str(folder), *rings], check=True)
    daemons: dict[str, subprocess.Popen[bytes]] = {}

    def is_listening(kind: str) -> bool:
        assert daemons[kind].poll() is None, (folder / f"{kind}.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", ports[kind])) == 0

    try:
        for kind, module in MODULES.items():
            path, user = folder / f"{kind}.conf", os.environ.get("USER", "root")
            common = COMMON.format(port=ports[kind], folder=folder, user=user)
            path.write_text(common + (PROXY if kind == "proxy" else SERVER.format(kind=kind)))
            code = f"from swift.{module}.server import main; main()"
            with (folder / f"{kind}.log").open("wb") as log:
                command = [sys.executable, "-c", code, str(path)]
                daemons[kind] = subprocess.Popen(
                    command, stdout=log, stderr=log, start_new_session=True
                )
        for kind in MODULES:
            until(lambda kind=kind: is_listening(kind))
        yield f"http://127.0.0.1:{ports['proxy']}"
    finally:
        for daemon in daemons.values():
            daemon.kill()
            daemon.wait()
