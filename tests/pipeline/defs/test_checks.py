"""Asset checks: what they find, that they run alone, and that a failure blocks later runs."""

from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from pipeline.dataset.dataset import open_unverified
from pipeline.defs import checks
from pipeline.defs.assets import training_set
from pipeline.defs.resources import DataFolder
from pipeline.defs.sensor import register_dumps
from pipeline.defs.steps import require_no_failed_check
from pipeline.validation import verify
from tests.pipeline.defs.conftest import (
    DUMP_TO_REPORT,
    NO_CONSOLE_LOG,
    SHORT_TRAINING,
    definitions,
    execute_assets,
    mark_materialized,
    materialize_alone,
    read_check_results,
)

pytestmark = pytest.mark.usefixtures("without_children")


def test_checks_run_alone_and_a_failure_blocks_later_runs(
    filled_folder: Path, instance: dg.DagsterInstance
) -> None:
    shard = next((filled_folder / "positions" / "small").glob("train-*.parquet"))
    content = shard.read_bytes()
    mark_materialized(instance, "small")
    mark_materialized(instance, "lost")
    job = definitions().resolve_job_def("verify")

    def verify_alone() -> dg.ExecuteInProcessResult:
        return job.execute_in_process(NO_CONSOLE_LOG, instance=instance, raise_on_error=False)

    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    failed = verify_alone()
    assert not failed.get_asset_materialization_events()
    assert not failed.success
    (event,) = failed.get_step_failure_events()
    assert "lost: " in str(event.step_failure_data.user_failure_data), "the others are verified"
    instance.delete_dynamic_partition("dumps", "lost")
    evaluations = {it.check_name: it for it in failed.get_asset_check_evaluations()}
    assert evaluations[checks.FILES_CHECK].partition == "small"
    assert evaluations[checks.FILES_CHECK].passed is False
    require_no_failed_check(instance, dg.AssetKey("positions"), ["other"])
    # the failure counts until the check is executed again
    shard.write_bytes(content)
    error = materialize_alone(training_set, instance, {"audit": False})
    assert error.startswith("positions of small failed the check files_match_manifest last time")
    assert all(read_check_results(verify_alone()).values())
    assert materialize_alone(training_set, instance, {"audit": False}) == ""


def test_a_shard_that_cannot_be_read_blocks_training(
    filled_folder: Path, instance: dg.DagsterInstance
) -> None:
    for shard in (filled_folder / "positions" / "small").glob("*-*.parquet"):
        data = bytearray(shard.read_bytes())
        data[4:400] = bytes(396)
        shard.write_bytes(data)
    register_dumps(instance, DataFolder())
    ops = {"positions": {"workers": 1}, "checkpoint": SHORT_TRAINING}
    result = execute_assets(DUMP_TO_REPORT, instance, ops, "small")
    assert not result.success
    assert read_check_results(result)[checks.FILES_CHECK] is False
    assert not result.asset_materializations_for_node("checkpoint")


def test_a_wrong_value_in_any_column_of_a_row_is_found(filled_folder: Path) -> None:
    directory = filled_folder / "positions" / "small"
    row = verify.sample_rows(open_unverified(directory), 1)[0]
    wrong = {
        "planes": bytes([row["planes"][0] ^ 1]) + row["planes"][1:],
        "label": row["label"] ^ 1,
        "result": row["result"] - 1,
        "castling": row["castling"] ^ 4,
        "ep_file": row["ep_file"] ^ 1,
        "halfmove": row["halfmove"] + 1,
    }
    text = (filled_folder / "dumps" / "small.pgn").read_bytes()
    game = pq.read_table(directory / "games.parquet").to_pylist()[row["game"]]
    text = text[game["offset"] : game["offset"] + game["length"]]
    assert verify.compare_row(row, text) == ""
    for column, value in wrong.items():
        assert column in verify.compare_row(row | {column: value}, text)


def test_rows_that_were_not_compared_do_not_pass() -> None:
    found = {"files": [], "splits": [], "rows": [], "damage": [], "compared": 0}
    for wanted, passes in ((64, False), (0, True)):
        results = {it.check_name: it.passed for it in checks.evaluate_positions(found, wanted)}
        assert results[checks.ROWS_CHECK] is passes


def test_a_game_in_two_splits_is_found(filled_folder: Path) -> None:
    dataset = open_unverified(filled_folder / "positions" / "small")
    manifest = dataset.manifest
    assert verify.compare_splits(dataset) == []
    for entry in manifest["files"]:
        entry["split"] = {"test": "train"}.get(entry["split"], entry["split"])
    assert "belong to another split" in verify.compare_splits(dataset)[0]
    twice = [entry | {"split": "val"} for entry in manifest["files"] if entry["split"] == "train"]
    manifest["files"] += twice
    assert any("in both train and val" in problem for problem in verify.compare_splits(dataset))


def test_checks_of_elo_and_imitation_use_the_lower_bound() -> None:
    row = {"score": 0.58, "elo": 60.0, "elo_low": 5.0, "elo_high": 120.0, "games": 200}
    assert checks.evaluate_strength(row).passed
    assert not checks.evaluate_strength(row | {"elo_low": -1.0}).passed
    assert checks.evaluate_strength(row | {"elo": None, "elo_high": None}).passed
    lost = checks.evaluate_strength(row | {"elo": None, "elo_low": None})
    assert (lost.passed, lost.description) == (False, "Elo below +120 in 200 games")
    for low, passes in ((0.01, True), (-0.01, False), (None, False)):
        figures = {"top1_difference": 0.05, "top1_low": low, "top1_high": 0.09}
        networks = [{"name": "base", "all": {}}, {"name": "imitation", "all": figures}]
        assert checks.evaluate_imitation({"headline": "x", "networks": networks}).passed is passes
