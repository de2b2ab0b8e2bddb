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
from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    choose_start,
    training_set,
)
from pipeline.defs.launchpad.options import CheckpointOptions
from pipeline.defs.resources import Datasets
from pipeline.defs.sensor import register
from pipeline.defs.steps import find_folder
from pipeline.samples.shipped import EMBEDDED
from tests.pipeline import datasets
from tests.pipeline.defs.conftest import (
    CHAIN,
    Made,
    execute,
    failure,
    mark_materialized,
    one,
    random_pgn,
)

pytestmark = pytest.mark.usefixtures("without_children")


def positions_of(directory: Path) -> dict[str, list[tuple[bytes, int]]]:
    """Return the stored planes and castling rights of each split."""
    found: dict[str, list[tuple[bytes, int]]] = {}
    for row in datasets.table(directory).select(["planes", "castling", "split"]).to_pylist():
        found.setdefault(row["split"], []).append((row["planes"], row["castling"]))
    return found


def count_shared(keys: dict[str, list[tuple[bytes, int]]]) -> int:
    """Count the test positions that also occur in train."""
    return sum(key in set(keys["train"]) for key in keys["test"])


def test_everything_materialises_and_the_blocking_checks_pass(made: Made) -> None:
    events = made.events(dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert {(event.asset_key, event.partition) for event in events} == {
        *((asset.key, "small") for asset in CHAIN[:2]),
        *((asset.key, None) for asset in CHAIN[2:]),
    }
    found = {
        event.asset_check_evaluation_data.check_name: event.asset_check_evaluation_data
        for event in made.events(dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    }
    passed = {
        checks.FILES,
        checks.SPLITS,
        checks.ROWS,
        checks.IS_READ_TO_END,
        checks.NO_GAME_ON_BOTH_SIDES,
        checks.LOSS,
    }
    assert set(found) == passed | {checks.BEATS_HAND_WRITTEN}
    assert all(found[name].passed for name in passed)
    rows = found[checks.ROWS].metadata
    assert rows["rows_compared"].value == rows["rows_wanted"].value == 64
    for words in ("train_network ...", "check rows_match_source: passed", "report.html", "make ui"):
        assert words in made.output


def test_metadata_of_positions_and_training_sets(made: Made) -> None:
    directory = made.datasets / "positions" / "small"
    manifest, said = read_manifest(directory), made.metadata("positions")
    assert said["dagster/row_count"] == manifest["positions"]["total"] == 60 * 40
    assert said["games_read"] == 60
    columns = {column.name for column in said["dagster/column_schema"].columns}
    assert columns >= {"own_pawns", "moves_1", "label", "result"}
    assert str(said["sample_of_positions"]).count("](/reports/pictures/") == 6
    said, keys = made.metadata("training_set"), positions_of(directory)
    assert said["dagster/row_count"] == manifest["positions"]["train"]
    distinct = len(set().union(*keys.values()))
    assert said["copies_share"] == pytest.approx(1 - distinct / (60 * 40), abs=1e-6)
    records = [row.data for row in said["test_positions_in_train"].records]
    (test,) = [row for row in records if row["split"] == "test"]
    assert test["in_train"] == count_shared(keys)
    assert Path(str(said["audit_page"])).read_text().startswith("# Audit of 2,400 positions")
    card = json.loads(Path(made.metadata("checkpoint")["path"], "checkpoint.json").read_text())
    assert card["data"]["training_sets"][0]["name"] == Path(str(said["path"])).name


def test_pictures_are_published_and_linked(made: Made) -> None:
    """Dagster hides Markdown of 1,000 characters or more behind a link."""
    for asset, name in (
        ("positions", "elo"),
        ("positions", "sample_of_positions"),
        ("checkpoint", "curves"),
        ("accuracy_report", "accuracy"),
        ("accuracy_report", "boards"),
    ):
        markdown = str(made.metadata(asset)[name])
        assert len(markdown) < 1000, name
        files = re.findall(r"\(/reports/([^)]+)\)", markdown)
        assert files
        for file in files:
            begins = b"\x89PNG\r\n" if file.endswith(".png") else b"<svg"
            assert (made.datasets / "reports" / file).read_bytes().startswith(begins), file


def test_the_report_has_one_headline_and_separates_positions_seen_in_training(
    made: Made,
) -> None:
    (path,) = (made.datasets / "reports").glob("*/*/report.json")
    report, page = json.loads(path.read_text()), (path.parent / "report.html").read_text()
    said = made.metadata("accuracy_report")
    assert (said["headline"], said["top1"]) == (report["headline"], round(report["top1"], 4))
    assert report["headline"] in page
    assert report["headline"] in " ".join(made.output.split())
    (run,) = made.instance.get_runs()
    assert run.tags["top1"] in report["headline"]
    assert next(iter(said)) == "moves_found", "a run's page shows the first entries of it"
    assert said["moves_found"].startswith(run.tags["top1"])
    assert said["page"] == f"/reports/{path.parents[1].name}/{path.parent.name}/report.html"
    rows = {row["band"]: row for row in report["slices"]["in train"]}
    small = made.datasets / "positions" / "small"
    assert rows["in train too"]["positions"] == count_shared(positions_of(small))
    hits = sum(row["positions"] * row["top1"] for row in rows.values())
    assert hits == pytest.approx(report["top1"] * report["positions"])
    # the probe draws its rows from row groups
    probe = tasks.probe(Path(said["checkpoint"]), small, "test", 10**6)
    assert probe["loss"] == pytest.approx(said["cross_entropy"], rel=0.2)


@pytest.mark.usefixtures("root")
def test_find_folder_prefers_its_own_run(instance: dg.DagsterInstance) -> None:
    @dg.asset(name="checkpoint", config_schema={"path": str})
    def network(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        path = context.op_execution_context.op_config["path"]
        return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(path)})

    @dg.asset
    def other() -> None:
        return

    idle = dg.materialize([other], instance=instance).dagster_run
    with pytest.raises(UserError, match="no checkpoint has been"):
        find_folder(checkpoint.key, instance, idle)
    first, second = (
        dg.materialize([network], instance=instance, run_config=config).dagster_run
        for config in ({"ops": {"checkpoint": {"config": {"path": path}}}} for path in ("/1", "/2"))
    )
    retry = idle._replace(parent_run_id=first.run_id, root_run_id=first.run_id)
    for run, path in ((first, "/1"), (second, "/2"), (idle, "/2"), (retry, "/1")):
        assert find_folder(checkpoint.key, instance, run) == Path(path)
    # "Report materialization" in the UI makes one without metadata
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key))
    assert find_folder(checkpoint.key, instance, idle) == Path("/2")
    said = {"path": dg.MetadataValue.path("/gone")}
    instance.report_runless_asset_event(dg.AssetMaterialization(training_set.key, metadata=said))
    words = "the training_set that was materialized last, is missing"
    assert words in one(checkpoint, instance, {})
    assert "no checkpoint called 'x'" in one(accuracy_report, instance, {"checkpoint": "x"})


def test_other_options_are_refused_unless_replacing(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    register(instance, Datasets())
    options = {"workers": 1, "more": {"test_share": 0.3, "val_share": 0.2}}
    build = partial(execute, CHAIN[:2], instance)
    said = failure(build({"positions": options}, "small"), "positions")
    assert "other settings (test_share, val_share)" in said
    assert "replace: true" in said
    assert "--out" not in said, "the remedy is Dagster's"
    assert build({"positions": options | {"replace": True}}, "small").success
    assert read_manifest(copied / "positions" / "small")["config"]["test_share"] == 0.3


def test_a_damaged_dump_gives_positions_and_a_warning(
    root: Path, instance: dg.DagsterInstance
) -> None:
    packed = gzip.compress(random_pgn(60).encode())
    (root / "dumps" / "broken.pgn.gz").write_bytes(packed[: len(packed) // 2])
    register(instance, Datasets())
    result = execute(CHAIN[:2], instance, {"positions": {"workers": 1}}, "broken")
    assert result.success
    found = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert (found[checks.IS_READ_TO_END], found[checks.ROWS]) == (False, True)


def test_user_errors_name_the_cause(
    root: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.add_dynamic_partitions("dumps", ["gone", "lichess_db_standard_rated_2013-03"])
    (root / "sample" / "games.pgn").mkdir(parents=True)
    (root / "dumps" / "empty.pgn").write_text("")
    register(instance, Datasets())
    build = partial(execute, CHAIN[:2], instance, {})
    for key, step, words in (
        ("gone", "dump", "there is no dump 'gone'"),
        ("lichess_db_standard_rated_2013-03", "dump", "`first_network` with `games: 2013-03`"),
        ("sample", "dump", "is a directory"),
        ("empty", "positions", "empty"),
    ):
        assert words in failure(build(key), step)
    assert "materialize `positions`" in one(training_set, instance, {})
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    assert "unknown engine 'abacus'" in failure(build("small"), "positions")
    (root / "dumps" / "small.pgn.gz").write_text("")
    assert "have the same name 'small'" in failure(build("small"), "dump")


def test_a_named_run_continues_and_cannot_be_shortened(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    """The run started from random weights; a new run on so few games would not."""
    (folder,) = [path for path in (copied / "checkpoints").iterdir() if path.is_dir()]
    assert re.fullmatch(r"fianchetto-human-[0-9a-f]{8}", folder.name)
    assert one(training_set, instance, {"audit": False}) == ""
    train = partial(one, checkpoint, instance)
    minutes = json.loads((folder / "checkpoint.json").read_text())["seconds"] / 60 + 0.01
    assert train({"name": folder.name, "minutes": minutes}) == ""
    assert json.loads((folder / "checkpoint.json").read_text())["config"]["minutes"] == minutes
    assert "more than 0.001" in train({"name": folder.name, "minutes": 0.001})


def test_missing_materialized_positions_are_named(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    small = copied / "positions" / "small"
    shutil.copytree(small, copied / "positions" / ".small.building-0123456789abcdef")
    shutil.move(small, copied / "positions" / "other")
    mark_materialized(instance, "small")
    mark_materialized(instance, "other")
    said = one(training_set, instance, {})
    assert said.startswith("positions of small are materialized but missing in"), said
    assert one(training_set, instance, {"positions": ["small"]}) == said
    assert one(training_set, instance, {"positions": ["other"], "audit": False}) == ""
    instance.delete_dynamic_partition("dumps", "small")
    assert one(training_set, instance, {"audit": False}) == ""
    (page,) = copied.glob("training_sets/*/training_set.json")
    assert [entry["name"] for entry in json.loads(page.read_text())["datasets"]] == ["other"]


def name_dataset(checkpoint: Path, positions: Path, *_: object) -> None:
    """Raise an error that names the dataset of a report."""
    raise UserError(f"measured on {positions.name}")


def test_a_report_measures_a_named_dataset_or_the_training_set_of_its_checkpoint(
    copied: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "report", name_dataset)
    (network,) = (card.parent.name for card in copied.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {"checkpoint": network}
    report = partial(one, accuracy_report, instance)
    assert "no positions called nosuch" in report(options | {"positions": "nosuch"})
    assert "no training_set has been materialized" in report(options)
    assert report(options | {"positions": "small"}) == "measured on small"
    for name in ("own", "newest"):
        chosen: dict[str, object] = {"positions": ["small"], "name": name, "audit": False}
        assert one(training_set, instance, chosen) == ""
    paths = {"path": copied / "checkpoints" / network, "trained_on": copied / "training_sets/own"}
    known = {name: dg.MetadataValue.path(path) for name, path in paths.items()}
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key, metadata=known))
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key))  # by hand
    assert report(options) == "measured on own"
    assert report(options | {"positions": "newest"}) == "measured on newest"


def test_the_sample_is_joined_only_without_other_dumps(root: Path) -> None:
    for name in ("sample", "made-by-hand", "small"):
        (root / "positions" / name).mkdir(parents=True)
        (root / "positions" / name / "manifest.json").write_text("{}")
    (root / "sample").mkdir()
    (root / "sample" / "games.pgn").write_text("x")
    find = Datasets().find_positions
    assert [path.name for path in find()] == ["small"]
    assert [path.name for path in find(("small", "made-by-hand"))] == ["made-by-hand", "small"]
    shutil.rmtree(root / "positions" / "small")
    assert [path.name for path in find()] == ["sample"]


OWN = TrainConfig(minutes=5.0, learning_rate=0.002)


def test_few_games_start_from_the_embedded_network(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 150_000, 15_000_000
    for rows, options, begins, rate in (
        (few, CheckpointOptions(), EMBEDDED, 0.0005),
        (few, CheckpointOptions(train=OWN), EMBEDDED, 0.002),
        (many, CheckpointOptions(), None, 0.005),
        (few, CheckpointOptions(preset="fianchetto-xs"), None, 0.005),
        (few, CheckpointOptions(start="scratch"), None, 0.005),
        (many, CheckpointOptions(start="embedded"), EMBEDDED, 0.0005),
    ):
        page: Any = {"positions": {"train": rows}}
        monkeypatch.setattr(Dataset, "open", lambda path, page=page: Dataset(path, page, ""))
        monkeypatch.setattr(
            Dataset, "count_rows", lambda it, split: it.manifest["positions"][split]
        )
        found, config, why = choose_start(options, Path("set"), Path("new"), Datasets())
        assert (found, config.learning_rate) == (begins, rate), options
        assert (begins.name if begins else "random") in why


def test_a_resumed_run_keeps_its_start(root: Path) -> None:
    out, mine = root / "checkpoints" / "run", root / "checkpoints" / "mine"
    with pytest.raises(UserError, match="no checkpoint called 'mine'"):
        choose_start(CheckpointOptions(start="mine"), root, root, Datasets())
    mine.mkdir(parents=True)
    assert choose_start(CheckpointOptions(start="mine"), root, root, Datasets())[0] == mine
    shutil.copytree(EMBEDDED, out)
    card = json.loads((out / "checkpoint.json").read_text())
    for began, start in ((None, None), ("embedded", EMBEDDED), ("mine", mine)):
        card["data"] = {"start": {"name": began, "data": {}}} if began else {}
        (out / "checkpoint.json").write_text(json.dumps(card))
        assert choose_start(CheckpointOptions(), root, out, Datasets())[0] == start
    (out / "checkpoint.json").write_text("[]")
    with pytest.raises(UserError, match="checkpoint"):
        choose_start(CheckpointOptions(), root, out, Datasets())
