"""Checks of assets: what they find, that they run alone, and what a failed one forbids."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.dataset import open_manifest
from pipeline.defs import checks
from pipeline.defs.assets import training_set
from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation import verify
from tests.pipeline.defs.conftest import (
    STEPS,
    Made,
    definitions,
    execute,
    materialised,
    one,
    random_pgn,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("without_children")


def test_checks_run_alone_and_what_a_failed_one_forbids_it_forbids_later_runs(copied: Path) -> None:
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    shard = next((copied / "positions" / "small").glob("train-*.parquet"))
    whole = shard.read_bytes()
    with dg.DagsterInstance.ephemeral() as instance:
        materialised(instance, "small")
        job = definitions().resolve_job_def("verify")

        def verify_alone() -> dg.ExecuteInProcessResult:
            return job.execute_in_process(silent, instance=instance, raise_on_error=False)

        shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        failed = verify_alone()
        assert not failed.get_asset_materialization_events()
        found = [
            (it.partition, it.passed)
            for it in failed.get_asset_check_evaluations()
            if it.check_name == checks.FILES
        ]
        assert found == [("small", False)]
        assert not failed.success
        # as if nobody had noticed: the check stands until it is executed again
        shard.write_bytes(whole)
        said = one(training_set, instance, {"audit": False})
        assert said.startswith(
            "positions of small failed the check files_match_manifest last time"
        ), said
        assert all(verdicts(verify_alone()).values())
        assert one(training_set, instance, {"audit": False}) == ""


@pytest.mark.parametrize("harm", ["one bit", "no page can be read"])
def test_a_tampered_shard_blocks_training(made: Made, copied: Path, harm: str) -> None:
    for shard in (copied / "positions" / "small").glob("*-*.parquet"):
        data = bytearray(shard.read_bytes())
        if harm == "one bit":
            data[len(data) // 2] ^= 1
        else:
            data[4:400] = bytes(396)
        shard.write_bytes(data)
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute(
            "everything", instance, {"positions": {"workers": 1}, "checkpoint": STEPS}, "small"
        )
    assert not result.success
    assert verdicts(result)[checks.FILES] is False
    assert not result.asset_materializations_for_node("checkpoint")


def test_a_wrong_bit_in_a_row_is_found(copied: Path) -> None:
    directory = copied / "positions" / "small"
    row = verify.sample_rows(open_manifest(directory), 1)[0]
    wrong = {
        "planes": bytes([row["planes"][0] ^ 1]) + row["planes"][1:],
        "label": row["label"] ^ 1,
        "result": row["result"] - 1,
        "castling": row["castling"] ^ 4,
        "ep_file": row["ep_file"] ^ 1,
        "halfmove": row["halfmove"] + 1,
    }
    text = (copied / "dumps" / "small.pgn").read_bytes()
    games = pq.read_table(directory / "games.parquet").to_pylist()
    start, length = games[row["game"]]["offset"], games[row["game"]]["length"]
    assert verify.row_differs(row, text[start : start + length]) == ""
    for column, value in wrong.items():
        assert column in verify.row_differs(row | {column: value}, text[start : start + length])


def test_rows_come_from_the_beginning_of_a_large_dump(tmp_path: Path) -> None:
    dump = tmp_path / "large.pgn"
    dump.write_text(random_pgn(60) * 120)
    data, limit, read = dump.read_bytes(), 1 << 20, 0
    assert len(data) > 3 * limit

    def text() -> Iterator[bytes]:
        nonlocal read
        for start in range(0, len(data), 1 << 16):
            read += 1 << 16
            yield data[start : start + (1 << 16)]

    ingest([str(dump)], tmp_path / "large", IngestConfig(chunk_mib=1), workers=1)
    dataset = open_manifest(tmp_path / "large")
    assert verify.rows_differ(dataset, text(), 64, limit) == (64, [])
    assert read <= limit + (2 << 16)


def test_rows_that_were_not_compared_are_not_called_the_same(copied: Path) -> None:
    dataset = open_manifest(copied / "positions" / "small")
    compared, problems = verify.rows_differ(dataset, iter([]), 64)
    assert (compared, len(problems)) == (0, 64)
    assert "is not in the dump" in problems[0]
    dataset.page["sources"][0]["damage"] = "it breaks off"
    assert verify.rows_differ(dataset, iter([]), 64) == (0, [])
    answer = {"files": [], "splits": [], "rows": [], "damage": [], "compared": 0}
    for wanted, passes in ((64, False), (0, True)):
        (check,) = [
            it for it in checks.evaluate_positions(answer, wanted) if it.check_name == checks.ROWS
        ]
        assert check.passed is passes


def test_a_game_in_two_splits_is_found(copied: Path) -> None:
    dataset = open_manifest(copied / "positions" / "small")
    manifest = dataset.page
    assert verify.splits_share_games(dataset) == []
    for entry in manifest["files"]:
        entry["split"] = {"test": "train"}.get(entry["split"], entry["split"])
    assert "belong to another split" in verify.splits_share_games(dataset)[0]
    twice = [entry | {"split": "val"} for entry in manifest["files"] if entry["split"] == "train"]
    manifest["files"] += twice
    assert any("in both train and val" in problem for problem in verify.splits_share_games(dataset))
