"""Everything on a small real dump, in this process: what the assets say, and what their checks notice."""

import gzip
import json
import os
import re
from base64 import b64decode
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from pipeline.defs import checks, verify
from pipeline.defs.assets import accuracy_report, checkpoint, dump, positions
from pipeline.defs.child import run_child
from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets
from pipeline.defs.sensors import new_dumps
from pipeline.shards import read_manifest
from tests.defs.conftest import STEPS, execute, random_pgn

Made = tuple[Path, dg.DagsterInstance, dg.ExecuteInProcessResult]


def metadata(result: dg.ExecuteInProcessResult, node: str) -> dict[str, object]:
    (event,) = result.asset_materializations_for_node(node)
    return {name: value.value for name, value in event.metadata.items()}


def failure(result: dg.ExecuteInProcessResult, step: str) -> str:
    (event,) = [event for event in result.get_step_failure_events() if event.step_key == step]
    said = event.step_failure_data.user_failure_data
    return str(said.description) if said else event.step_failure_data.error_display_string


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


def test_everything_materialises(made: Made) -> None:
    result = made[2]
    assert result.success, [event.event_specific_data for event in result.get_step_failure_events()]
    found = {(event.asset_key, event.partition) for event in result.get_asset_materialization_events()}
    assert found == {(dump.key, "small"), (positions.key, "small"), (checkpoint.key, None), (accuracy_report.key, None)}


def test_the_blocking_checks_pass(made: Made) -> None:
    found = verdicts(made[2])
    assert set(found) == {
        checks.FILES,
        checks.SPLITS,
        checks.ROWS,
        checks.WHOLE,
        checks.LOSS,
        checks.CHANCE,
        checks.CLASSICAL,
    }
    assert all(
        passed for name, passed in found.items() if name not in (checks.CHANCE, checks.CLASSICAL)
    )  # 12 steps may lose to chance


def test_positions_say_what_a_person_asks(made: Made) -> None:
    said = metadata(made[2], "positions")
    manifest = read_manifest(made[0] / "positions" / "small")
    assert said["dagster/row_count"] == manifest["positions"]["total"] == 60 * 40
    assert said["games_read"] == 60
    assert {column.name for column in said["dagster/column_schema"].columns} >= {"planes", "label", "result"}  # type: ignore[attr-defined]
    assert str(said["sample_of_positions"]).count("data:image/svg+xml") == 6
    assert len(str(said["sample_of_positions"])) < 250_000
    assert len(str(said["elo"])) < 100_000


def test_pictures_are_pictures(made: Made) -> None:
    for node, name in (("positions", "elo"), ("checkpoint", "curves")):
        markdown = str(metadata(made[2], node)[name])
        data = re.search(r"\(data:image/png;base64,([^)]+)\)", markdown)
        assert data is not None
        assert b64decode(data[1]).startswith(b"\x89PNG\r\n")


def test_the_report_shows_first_choices(made: Made) -> None:
    said = metadata(made[2], "accuracy_report")
    assert 0 <= said["top1"] <= said["top3"] <= said["top5"] <= 1  # type: ignore[operator]
    assert said["positions"] == read_manifest(made[0] / "positions" / "small")["positions"]["test"]
    assert str(said["first_choices"]).count("network: ") == 2 * 6  # the picture's text and the line under it


def test_a_tampered_shard_blocks_training(made: Made, copied: Path) -> None:
    shard = sorted((copied / "positions" / "small").glob("train-*.parquet"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        manifest = json.loads((shard.parent / "manifest.json").read_text())
        manifest["sources"][0]["path"] = str(copied / "dumps" / "small.pgn")  # it was copied
        (shard.parent / "manifest.json").write_text(json.dumps(manifest))
        options = {"workers": 1, "ingest": {"test_share": 0.2, "val_share": 0.2}}
        result = execute("everything", instance, {"positions": options, "checkpoint": STEPS}, "small")
    assert not result.success
    assert verdicts(result)[checks.FILES] is False
    assert not result.asset_materializations_for_node("checkpoint")


@pytest.mark.parametrize("column", ["planes", "label", "result"])
def test_a_wrong_bit_in_a_row_is_found(copied: Path, column: str) -> None:
    directory = copied / "positions" / "small"
    manifest = read_manifest(directory)
    row = verify.sample_rows(directory, manifest, 1)[0]
    wrong = {
        "planes": bytes([row["planes"][0] ^ 1]) + row["planes"][1:],
        "label": row["label"] ^ 1,
        "result": row["result"] - 1,
    }
    text = (copied / "dumps" / "small.pgn").read_bytes()
    games = pq.read_table(directory / "games.parquet").to_pylist()
    start, length = games[row["game"]]["offset"], games[row["game"]]["length"]
    assert verify.row_differs(row, text[start : start + length]) == ""
    assert column in verify.row_differs(row | {column: wrong[column]}, text[start : start + length])


def test_a_game_in_two_splits_is_found(copied: Path) -> None:
    directory = copied / "positions" / "small"
    manifest = read_manifest(directory)
    assert verify.splits_share_games(directory, manifest) == []
    for entry in manifest["files"]:
        entry["split"] = {"test": "train"}.get(entry["split"], entry["split"])
    assert "belong to another split" in verify.splits_share_games(directory, manifest)[0]
    twice = [entry | {"split": "val"} for entry in manifest["files"] if entry["split"] == "train"]
    manifest["files"] += twice
    assert any("in both train and val" in problem for problem in verify.splits_share_games(directory, manifest))


def test_other_options_are_refused_unless_replacing(copied: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        options = {"workers": 1, "ingest": {"test_share": 0.3, "val_share": 0.2}}
        refused = execute("build_positions", instance, {"positions": options}, "small")
        assert "other settings" in failure(refused, "positions")
        assert (copied / "positions" / "small" / "manifest.json").exists()
        replaced = execute("build_positions", instance, {"positions": options | {"replace": True}}, "small")
    assert replaced.success
    assert read_manifest(copied / "positions" / "small")["config"]["test_share"] == 0.3


def test_a_damaged_dump_gives_positions_and_a_warning(root: Path) -> None:
    (root / "dumps" / "small.pgn").unlink()
    packed = gzip.compress(random_pgn(200).encode())
    (root / "dumps" / "broken.pgn.gz").write_bytes(packed[: len(packed) // 2])
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("build_positions", instance, {"positions": {"workers": 1}}, "broken")
    assert result.success
    assert verdicts(result)[checks.WHOLE] is False
    assert verdicts(result)[checks.ROWS] is True


def test_mistakes_are_said_plainly(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        instance.add_dynamic_partitions("dumps", ["gone"])
        assert "there is no dump 'gone'" in failure(execute("build_positions", instance, {}, "gone"), "dump")
        assert "materialise `positions` first" in failure(execute("train", instance, {}), "checkpoint")
        (root / "dumps" / "empty.pgn").write_text("")
        register(instance, Datasets())
        assert "empty" in failure(execute("build_positions", instance, {}, "empty"), "positions")
        (root / "dumps" / "small.pgn.gz").write_text("")
        assert "are all called 'small'" in failure(execute("build_positions", instance, {}, "small"), "dump")


def test_a_checkpoint_is_named_by_its_run_and_refused_when_unknown(copied: Path) -> None:
    (folder,) = [path for path in (copied / "checkpoints").iterdir() if path.is_dir()]
    assert re.fullmatch(r"fianchetto-xs-[0-9a-f]{8}", folder.name)
    with dg.DagsterInstance.ephemeral() as instance:
        wrong = execute("train", instance, {"checkpoint": STEPS | {"preset": "fianchetto-sx"}})
        assert "did you mean fianchetto-xs" in failure(wrong, "checkpoint")
        wrong = execute("train", instance, {"checkpoint": {"train": {"minutes": 1.0, "steps": 5}}})
        assert "either minutes or steps" in failure(wrong, "checkpoint")


def test_the_probe_of_a_checkpoint_agrees_with_its_report(made: Made) -> None:
    (network,) = [path for path in (made[0] / "checkpoints").iterdir() if path.is_dir()]
    request = {"checkpoint": str(network), "positions": str(made[0] / "positions" / "small"), "split": "test"}
    probe = run_child("probe", request | {"count": 10**6, "drawn": 2})
    said = metadata(made[2], "accuracy_report")
    assert probe["loss"] == pytest.approx(said["cross_entropy"], rel=0.2)  # the probe draws its rows from row groups
    assert [len(choices) for choices in probe["choices"]] == [3, 3]


def test_the_sensor_registers_and_requests(root: Path) -> None:
    (root / "dumps" / "being-copied.pgn").write_text("x")
    (root / "dumps" / "notes.txt").write_text("x")
    os.utime(root / "dumps" / "small.pgn", (0, 0))
    with dg.DagsterInstance.ephemeral() as instance:
        found = new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets())
        assert isinstance(found, dg.SensorResult)
        assert [request.partition_key for request in found.run_requests or []] == ["small"]
        assert [list(request.partition_keys) for request in found.dynamic_partitions_requests or []] == [["small"]]
        instance.add_dynamic_partitions("dumps", ["small"])
        skipped = new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets())
        assert "1 still being written" in str(skipped)
