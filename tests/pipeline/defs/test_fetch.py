"""The dump asset and the schedule against a server that publishes months as Lichess does."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import zstandard

from pipeline.defs import jobs
from pipeline.defs.assets import dump
from pipeline.defs.resources import Datasets
from pipeline.dumps.fetch import STEM
from tests.pipeline.defs.conftest import execute, random_pgn
from tests.pipeline.loopback import Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def keys(instance: dg.DagsterInstance) -> list[str]:
    return sorted(instance.get_dynamic_partitions("dumps"))


def test_a_month_that_is_no_file_yet_is_fetched(root: Path, server: Server) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    server.publish(f"{STEM}2013-01.pgn.zst", data)
    server.publish(f"{STEM}2013-02.pgn.zst", data, sha256="0" * 64)
    with dg.DagsterInstance.ephemeral() as instance:
        for month in ("2013-01", "2013-02", "2013-03"):
            instance.add_dynamic_partitions("dumps", [f"{STEM}{month}"])
        ran = {}
        for month in ("2013-01", "2013-02", "2013-03"):
            ran[month] = dg.materialize(
                [dump],
                instance=instance,
                partition_key=f"{STEM}{month}",
                resources={"datasets": Datasets()},
                raise_on_error=False,
            )
        assert ran["2013-01"].success
        (made,) = ran["2013-01"].asset_materializations_for_node("dump")
        assert made.metadata["bytes"].value == len(data)
        assert (root / "dumps" / f"{STEM}2013-01.pgn.zst").read_bytes() == data
        for month, says in (("2013-02", "is published: it was not kept"), ("2013-03", "does not publish")):
            (event,) = ran[month].get_step_failure_events()
            said = event.step_failure_data.user_failure_data
            assert said is not None
            assert says in str(said.description)
        assert not list((root / "dumps").glob(f"{STEM}2013-0[23]*"))


@pytest.mark.usefixtures("root")
def test_the_schedule_registers_what_is_new(server: Server) -> None:
    for month in ("2013-01", "2013-02"):
        server.publish(f"{STEM}{month}.pgn.zst", b"x")
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("dumps", ["small", "sample"])
        assert jobs.register_published(instance, Datasets()) == [f"{STEM}2013-02"]  # the latest, at first
        assert jobs.register_published(instance, Datasets()) == []
        for month in ("2013-03", "2013-04"):
            server.publish(f"{STEM}{month}.pgn.zst", b"x")
        assert execute("register_months", instance, {}).success
        months = [f"{STEM}2013-0{month}" for month in (2, 3, 4)]
        assert keys(instance) == sorted(["sample", "small", *months])
        assert {path for path, _, _ in server.asked} == {"/standard/sha256sums.txt"}  # nothing is fetched
