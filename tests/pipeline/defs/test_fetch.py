"""The months of Lichess from a server that publishes months as Lichess does."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
import zstandard

from pipeline.defs.fetched import fetched_months
from pipeline.defs.resources import Datasets
from pipeline.dumps.fetch import STEM
from tests.pipeline.defs.conftest import execute, failure, random_pgn
from tests.pipeline.loopback import Server, serving

pytestmark = pytest.mark.usefixtures("without_children")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as running:
        monkeypatch.setenv("FIANCHETTO_LICHESS", f"{running.url}/standard")
        yield running


def keys(instance: dg.DagsterInstance) -> list[str]:
    return sorted(instance.get_dynamic_partitions("dumps"))


def fetched(instance: dg.DagsterInstance, month: str) -> dg.ExecuteInProcessResult:
    return execute("fetch_month", instance, {"download": {"month": month}})


def requested(
    instance: dg.DagsterInstance,
    result: dg.ExecuteInProcessResult,
) -> list[dg.RunRequest]:
    """Give the runs that the sensor requests after a run."""
    run = instance.get_run_by_id(result.run_id)
    (end,) = [event for event in result.all_events if event.event_type_value == "PIPELINE_SUCCESS"]
    context = dg.build_run_status_sensor_context(
        "fetched_months", end, instance, run, resources={"datasets": Datasets()}
    )
    return list(fetched_months(context))


def test_a_month_is_fetched_and_its_positions_are_requested(root: Path, server: Server) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    server.publish(f"{STEM}2013-01.pgn.zst", data)
    server.publish(f"{STEM}2013-02.pgn.zst", data, sha256="0" * 64)
    (root / "dumps" / f"{STEM}2013-04.pgn").write_text(random_pgn(2))
    first = f"{STEM}2013-01"
    with dg.DagsterInstance.ephemeral() as instance:
        result = fetched(instance, "2013-01")
        assert result.success
        assert (root / "dumps" / f"{first}.pgn.zst").read_bytes() == data
        assert keys(instance) == [first]
        assert [request.partition_key for request in requested(instance, result)] == [first]
        for month, says in (
            ("2013-02", "it was not kept"),
            ("2013-03", "does not publish"),
            ("2013-04", f"{STEM}2013-04.pgn exists and is used as it is"),
        ):
            assert says in failure(fetched(instance, month), "download")
        assert not list((root / "dumps").glob(f"{STEM}2013-0[23]*"))
        assert keys(instance) == [first], "what could not be fetched is no dump"
        assert execute("build_positions", instance, {"positions": {"workers": 1}}, first).success
        assert requested(instance, result) == [], "they are current"
        instance.add_dynamic_partitions("dumps", [f"{STEM}2013-03"])
        said = failure(execute("build_positions", instance, {}, f"{STEM}2013-03"), "dump")
        assert "`fetch_month` with `month: 2013-03`" in said


def test_a_range_of_months_becomes_dumps(root: Path, server: Server) -> None:
    for month in ("2013-01", "2013-02"):
        server.publish(f"{STEM}{month}.pgn.zst", zstandard.compress(random_pgn(2).encode()))
    with dg.DagsterInstance.ephemeral() as instance:
        result = fetched(instance, "2013-01..2013-02")
        assert result.success
        assert keys(instance) == [f"{STEM}2013-01", f"{STEM}2013-02"]
        assert [it.partition_key for it in requested(instance, result)] == keys(instance)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("month", ["2013-1", "2013-13", "2099-01", "", "https://evil.test/x.pgn"])
def test_what_is_no_published_month_is_refused_with_the_newest(month: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        said = failure(fetched(instance, month), "download")
    now = datetime.now(UTC)
    last = now.year * 12 + now.month - 2
    assert f"newest months are {last // 12}-{last % 12 + 1:02}" in said
