"""The months of Lichess from a server that publishes months as Lichess does."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
import zstandard

from pipeline.defs.assets import lichess_month, months
from pipeline.defs.resources import Datasets
from pipeline.dumps.fetch import STEM
from tests.pipeline.defs.conftest import execute, random_pgn
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
    resources = {"datasets": Datasets()}
    return dg.materialize(
        [lichess_month], instance=instance, partition_key=month, resources=resources, raise_on_error=False
    )


def failure(result: dg.ExecuteInProcessResult) -> str:
    (event,) = result.get_step_failure_events()
    said = event.step_failure_data.user_failure_data
    assert said is not None
    return str(said.description)


def test_a_month_is_fetched_and_becomes_a_dump(root: Path, server: Server) -> None:
    data = zstandard.compress(random_pgn(2).encode())
    server.publish(f"{STEM}2013-01.pgn.zst", data)
    server.publish(f"{STEM}2013-02.pgn.zst", data, sha256="0" * 64)
    (root / "dumps" / f"{STEM}2013-04.pgn").write_text(random_pgn(2))
    with dg.DagsterInstance.ephemeral() as instance:
        first = fetched(instance, "2013-01")
        assert first.success
        (made,) = first.asset_materializations_for_node("lichess_month")
        assert made.metadata["bytes"].value == len(data)
        assert made.metadata["dump"].value == f"{STEM}2013-01"
        assert (root / "dumps" / f"{STEM}2013-01.pgn.zst").read_bytes() == data
        assert keys(instance) == [f"{STEM}2013-01"]
        for month, says in (
            ("2013-02", "it was not kept"),
            ("2013-03", "does not publish"),
            ("2013-04", f"{STEM}2013-04.pgn exists and is used as it is"),
        ):
            assert says in failure(fetched(instance, month))
        assert not list((root / "dumps").glob(f"{STEM}2013-0[23]*"))
        assert keys(instance) == [f"{STEM}2013-01"], "what could not be fetched is no dump"
        assert execute("build_positions", instance, {"positions": {"workers": 1}}, f"{STEM}2013-01").success
        instance.add_dynamic_partitions("dumps", [f"{STEM}2013-03"])
        said = failure(execute("build_positions", instance, {}, f"{STEM}2013-03"))
        assert "materialize the partition 2013-03 of `lichess_month`" in said


def test_a_range_of_months_is_a_range_of_partitions_from_the_first_to_the_last_that_is_over() -> None:
    now = datetime(2026, 3, 14, tzinfo=UTC)
    found = months.get_partition_keys(current_time=now)
    assert (found[0], found[-1], len(found)) == ("2013-01", "2026-02", 13 * 12 + 2)
    spanned = months.get_partition_keys_in_range(dg.PartitionKeyRange("2013-11", "2014-02"))
    assert list(spanned) == ["2013-11", "2013-12", "2014-01", "2014-02"]
