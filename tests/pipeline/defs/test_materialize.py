"""The assets on a small dump: their metadata, inputs and errors."""

import gzip
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from engine.errors import UserError
from model.training.config import TrainConfig
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.manifest import read_manifest
from pipeline.defs import checks, tasks
from pipeline.defs.assets import accuracy_report, checkpoint, choose_start, training_set
from pipeline.defs.launchpad.options import CheckpointOptions
from pipeline.defs.resources import DataFolder
from pipeline.defs.sensor import register_dumps
from pipeline.defs.steps import find_folder
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.pipeline import datasets
from tests.pipeline.defs.conftest import (
    DUMP_TO_REPORT,
    NetworkRun,
    execute_assets,
    mark_materialized,
    materialize_alone,
    random_pgn,
    read_check_results,
    read_failure,
)

pytestmark = pytest.mark.usefixtures("without_children")


def read_positions(directory: Path) -> dict[str, list[tuple[bytes, int]]]:
    """Return the stored planes and castling rights of each split."""
    found: dict[str, list[tuple[bytes, int]]] = {}
    for row in datasets.table(directory).select(["planes", "castling", "split"]).to_pylist():
        found.setdefault(row["split"], []).append((row["planes"], row["castling"]))
    return found


def count_shared(positions: dict[str, list[tuple[bytes, int]]]) -> int:
    """Count the test positions that also occur in train."""
    return sum(position in set(positions["train"]) for position in positions["test"])


def test_first_network_materializes_all_assets_and_passes_the_blocking_checks(
    network_run: NetworkRun,
) -> None:
    events = network_run.events(dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert {(event.asset_key, event.partition) for event in events} == {
        *((asset.key, "small") for asset in DUMP_TO_REPORT[:2]),
        *((asset.key, None) for asset in DUMP_TO_REPORT[2:]),
    }
    results = {
        event.asset_check_evaluation_data.check_name: event.asset_check_evaluation_data
        for event in network_run.events(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    }
    failed = {name for name, result in results.items() if not result.passed}
    assert len(results) == 7
    assert failed <= {checks.HAND_WRITTEN_CHECK}
    rows = results[checks.ROWS_CHECK].metadata
    assert rows["rows_compared"].value == rows["rows_wanted"].value == 64
    for text in ("train_network ...", "check rows_match_source: passed", "report.html", "make ui"):
        assert text in network_run.output


def test_metadata_of_positions_and_training_sets(network_run: NetworkRun) -> None:
    directory = network_run.datasets / "positions" / "small"
    manifest, metadata = read_manifest(directory), network_run.metadata("positions")
    assert metadata["dagster/row_count"] == manifest["positions"]["total"] == 60 * 40
    assert metadata["games_read"] == 60
    columns = {column.name for column in metadata["dagster/column_schema"].columns}
    assert columns >= {"own_pawns", "moves_1", "label", "result"}
    assert str(metadata["sample_of_positions"]).count("](/reports/pictures/") == 6
    metadata, positions = network_run.metadata("training_set"), read_positions(directory)
    assert metadata["dagster/row_count"] == manifest["positions"]["train"]
    distinct = len(set().union(*positions.values()))
    assert metadata["copies_share"] == pytest.approx(1 - distinct / (60 * 40), abs=1e-6)
    records = [row.data for row in metadata["test_positions_in_train"].records]
    (test,) = [row for row in records if row["split"] == "test"]
    assert test["in_train"] == count_shared(positions)
    assert Path(str(metadata["audit_page"])).read_text().startswith("# Audit of 2,400 positions")
    folder = Path(network_run.metadata("checkpoint")["path"])
    card = json.loads((folder / "checkpoint.json").read_text())
    assert card["data"]["training_sets"][0]["name"] == Path(str(metadata["path"])).name


def test_pictures_are_published_and_linked(network_run: NetworkRun) -> None:
    """Dagster hides Markdown of 1,000 characters or more behind a link."""
    for asset, name in (
        ("positions", "elo"),
        ("positions", "sample_of_positions"),
        ("checkpoint", "curves"),
        ("accuracy_report", "accuracy"),
        ("accuracy_report", "boards"),
    ):
        markdown = str(network_run.metadata(asset)[name])
        assert len(markdown) < 1000, name
        files = re.findall(r"\(/reports/([^)]+)\)", markdown)
        assert files
        for file in files:
            begins = b"\x89PNG\r\n" if file.endswith(".png") else b"<svg"
            assert (network_run.datasets / "reports" / file).read_bytes().startswith(begins), file


def test_metadata_of_a_report_agree_with_its_page_and_tag(
    network_run: NetworkRun,
) -> None:
    (path,) = (network_run.datasets / "reports").glob("*/*/report.json")
    report, page = json.loads(path.read_text()), (path.parent / "report.html").read_text()
    metadata = network_run.metadata("accuracy_report")
    assert metadata["headline"] == report["headline"]
    assert metadata["top1"] == round(report["top1"], 4)
    assert report["headline"] in page
    assert report["headline"] in " ".join(network_run.output.split())
    (run,) = network_run.instance.get_runs()
    assert run.tags["top1"] in report["headline"]
    assert next(iter(metadata)) == "moves_found", "a run's page shows only the first entries"
    assert metadata["moves_found"].startswith(run.tags["top1"])
    assert metadata["page"] == f"/reports/{path.parents[1].name}/{path.parent.name}/report.html"
    rows = {row["band"]: row for row in report["slices"]["in train"]}
    small = network_run.datasets / "positions" / "small"
    assert rows["in train too"]["positions"] == count_shared(read_positions(small))
    # approximately equal, because the probe samples rows from row groups
    probe = tasks.probe(Path(metadata["checkpoint"]), small, "test", 10**6)
    assert probe["loss"] == pytest.approx(metadata["cross_entropy"], rel=0.2)


@pytest.mark.usefixtures("data_folder")
def test_find_folder_prefers_what_its_own_run_materialized(instance: dg.DagsterInstance) -> None:
    @dg.asset(name="checkpoint", config_schema={"path": str})
    def network(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        path = context.op_execution_context.op_config["path"]
        return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(path)})

    @dg.asset
    def other() -> None:
        return

    other_run = dg.materialize([other], instance=instance).dagster_run
    with pytest.raises(UserError, match="no checkpoint has been"):
        find_folder(checkpoint.key, instance, other_run)
    first, second = (
        dg.materialize([network], instance=instance, run_config=config).dagster_run
        for config in ({"ops": {"checkpoint": {"config": {"path": path}}}} for path in ("/1", "/2"))
    )
    retry = other_run._replace(parent_run_id=first.run_id, root_run_id=first.run_id)
    for run, path in ((first, "/1"), (second, "/2"), (other_run, "/2"), (retry, "/1")):
        assert find_folder(checkpoint.key, instance, run) == Path(path)
    # "Report materialization" in the UI makes one without metadata
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key))
    assert find_folder(checkpoint.key, instance, other_run) == Path("/2")
    gone = {"path": dg.MetadataValue.path("/gone")}
    instance.report_runless_asset_event(dg.AssetMaterialization(training_set.key, metadata=gone))
    problem = "the training_set that was materialized last, is missing"
    assert problem in materialize_alone(checkpoint, instance, {})
    assert "no checkpoint called 'x'" in materialize_alone(
        accuracy_report, instance, {"checkpoint": "x"}
    )


def test_positions_with_other_options_need_replace(
    filled_folder: Path, instance: dg.DagsterInstance
) -> None:
    register_dumps(instance, DataFolder())
    options = {"workers": 1, "more": {"test_share": 0.3, "val_share": 0.2}}
    build = partial(execute_assets, DUMP_TO_REPORT[:2], instance)
    error = read_failure(build({"positions": options}, "small"), "positions")
    assert "other settings (test_share, val_share)" in error
    assert "replace: true" in error
    assert "--out" not in error, "not the remedy of the command line"
    assert build({"positions": options | {"replace": True}}, "small").success
    assert read_manifest(filled_folder / "positions" / "small")["config"]["test_share"] == 0.3


def test_a_damaged_dump_gives_positions_and_a_warning(
    data_folder: Path, instance: dg.DagsterInstance
) -> None:
    packed = gzip.compress(random_pgn(60).encode())
    (data_folder / "dumps" / "broken.pgn.gz").write_bytes(packed[: len(packed) // 2])
    register_dumps(instance, DataFolder())
    result = execute_assets(DUMP_TO_REPORT[:2], instance, {"positions": {"workers": 1}}, "broken")
    assert result.success
    passed = read_check_results(result)
    assert (passed[checks.DUMP_READ_CHECK], passed[checks.ROWS_CHECK]) == (False, True)


def test_user_errors_name_the_cause(
    data_folder: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.add_dynamic_partitions("dumps", ["gone", "lichess_db_standard_rated_2013-03"])
    (data_folder / "sample" / "games.pgn").mkdir(parents=True)
    (data_folder / "dumps" / "empty.pgn").write_text("")
    register_dumps(instance, DataFolder())
    build = partial(execute_assets, DUMP_TO_REPORT[:2], instance, {})
    for key, step, problem in (
        ("gone", "dump", "there is no dump 'gone'"),
        ("lichess_db_standard_rated_2013-03", "dump", "`first_network` with `games: 2013-03`"),
        ("sample", "dump", "is a directory"),
        ("empty", "positions", "empty"),
    ):
        assert problem in read_failure(build(key), step)
    assert "materialize `positions`" in materialize_alone(training_set, instance, {})
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    assert "unknown engine 'abacus'" in read_failure(build("small"), "positions")
    (data_folder / "dumps" / "small.pgn.gz").write_text("")
    assert "belong to the same partition 'small'" in read_failure(build("small"), "dump")


def test_a_named_run_continues_and_cannot_be_shortened(
    filled_folder: Path, instance: dg.DagsterInstance
) -> None:
    """The run started from random weights; a new run on so few games would not."""
    (folder,) = [path for path in (filled_folder / "checkpoints").iterdir() if path.is_dir()]
    assert re.fullmatch(r"fianchetto-human-[0-9a-f]{8}", folder.name)
    assert materialize_alone(training_set, instance, {"audit": False}) == ""
    train = partial(materialize_alone, checkpoint, instance)
    minutes = json.loads((folder / "checkpoint.json").read_text())["seconds"] / 60 + 0.01
    assert train({"name": folder.name, "minutes": minutes}) == ""
    assert json.loads((folder / "checkpoint.json").read_text())["config"]["minutes"] == minutes
    assert "more than 0.001" in train({"name": folder.name, "minutes": 0.001})


def test_an_error_names_materialized_positions_that_are_missing(
    filled_folder: Path, instance: dg.DagsterInstance
) -> None:
    small = filled_folder / "positions" / "small"
    shutil.copytree(small, filled_folder / "positions" / ".small.building-0123456789abcdef")
    shutil.move(small, filled_folder / "positions" / "other")
    mark_materialized(instance, "small")
    mark_materialized(instance, "other")
    error = materialize_alone(training_set, instance, {})
    assert error.startswith("positions of small are materialized but missing in"), error
    assert materialize_alone(training_set, instance, {"positions": ["small"]}) == error
    assert materialize_alone(training_set, instance, {"positions": ["other"], "audit": False}) == ""
    instance.delete_dynamic_partition("dumps", "small")
    assert materialize_alone(training_set, instance, {"audit": False}) == ""
    (page,) = filled_folder.glob("training_sets/*/training_set.json")
    assert [entry["name"] for entry in json.loads(page.read_text())["datasets"]] == ["other"]


def raise_dataset_name(checkpoint: Path, positions: Path, *_: object) -> None:
    """Stand in for the report: raise an error that names the dataset to measure on."""
    raise UserError(f"measured on {positions.name}")


def test_a_report_measures_a_named_dataset_or_the_training_set_of_its_checkpoint(
    filled_folder: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "report", raise_dataset_name)
    (network,) = (card.parent.name for card in filled_folder.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {"checkpoint": network}
    report = partial(materialize_alone, accuracy_report, instance)
    assert "no positions called nosuch" in report(options | {"positions": "nosuch"})
    assert "no training_set has been materialized" in report(options)
    assert report(options | {"positions": "small"}) == "measured on small"
    for name in ("own", "newest"):
        set_options: dict[str, object] = {"positions": ["small"], "name": name, "audit": False}
        assert materialize_alone(training_set, instance, set_options) == ""
    paths = (("path", f"checkpoints/{network}"), ("trained_on", "training_sets/own"))
    metadata = {name: dg.MetadataValue.path(filled_folder / path) for name, path in paths}
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key, metadata=metadata))
    instance.report_runless_asset_event(
        dg.AssetMaterialization(checkpoint.key)
    )  # reported by a user
    assert report(options) == "measured on own"
    assert report(options | {"positions": "newest"}) == "measured on newest"


def test_the_sample_is_used_only_without_other_dumps(data_folder: Path) -> None:
    for name in ("sample", "made-by-hand", "small"):
        (data_folder / "positions" / name).mkdir(parents=True)
        (data_folder / "positions" / name / "manifest.json").write_text("{}")
    (data_folder / "sample").mkdir()
    (data_folder / "sample" / "games.pgn").write_text("x")
    find = DataFolder().find_positions
    assert [path.name for path in find()] == ["small"]
    assert [path.name for path in find(("small", "made-by-hand"))] == ["made-by-hand", "small"]
    shutil.rmtree(data_folder / "positions" / "small")
    assert [path.name for path in find()] == ["sample"]


def test_few_games_start_from_the_embedded_network(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 150_000, 15_000_000
    own_rate = TrainConfig(minutes=5.0, learning_rate=0.002)
    for rows, options, start, rate in (
        (few, CheckpointOptions(), EMBEDDED_CHECKPOINT, 0.0005),
        (few, CheckpointOptions(train=own_rate), EMBEDDED_CHECKPOINT, 0.002),
        (many, CheckpointOptions(), None, 0.005),
        (few, CheckpointOptions(preset="fianchetto-xs"), None, 0.005),
        (few, CheckpointOptions(start="scratch"), None, 0.005),
        (many, CheckpointOptions(start="embedded"), EMBEDDED_CHECKPOINT, 0.0005),
    ):
        page: Any = {"positions": {"train": rows}}
        monkeypatch.setattr(Dataset, "open", lambda path, page=page: Dataset(path, page, ""))
        monkeypatch.setattr(
            Dataset, "count_rows", lambda it, split: it.manifest["positions"][split]
        )
        chosen, config, reason = choose_start(options, Path("set"), Path("new"), DataFolder())
        assert (chosen, config.learning_rate) == (start, rate), options
        assert (start.name if start else "random") in reason


def test_a_resumed_run_keeps_its_start(data_folder: Path) -> None:
    out, mine = data_folder / "checkpoints" / "run", data_folder / "checkpoints" / "mine"
    with pytest.raises(UserError, match="no checkpoint called 'mine'"):
        choose_start(CheckpointOptions(start="mine"), data_folder, data_folder, DataFolder())
    mine.mkdir(parents=True)
    assert (
        choose_start(CheckpointOptions(start="mine"), data_folder, data_folder, DataFolder())[0]
        == mine
    )
    shutil.copytree(EMBEDDED_CHECKPOINT, out)
    card = json.loads((out / "checkpoint.json").read_text())
    for name, start in ((None, None), ("embedded", EMBEDDED_CHECKPOINT), ("mine", mine)):
        card["data"] = {"start": {"name": name, "data": {}}} if name else {}
        (out / "checkpoint.json").write_text(json.dumps(card))
        assert choose_start(CheckpointOptions(), data_folder, out, DataFolder())[0] == start
    (out / "checkpoint.json").write_text("[]")
    with pytest.raises(UserError, match="checkpoint"):
        choose_start(CheckpointOptions(), data_folder, out, DataFolder())
