"""Everything on a small real dump: what the assets say, and what they refuse."""

import gzip
import hashlib
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from engine.errors import UserError
from engine.progress import silent
from pipeline.dataset.files.shards import read_manifest, write_rows
from pipeline.defs import checks, tasks
from pipeline.defs.assets import (
    accuracy_report,
    checkpoint,
    dump,
    find_folder,
    leaderboard,
    positions,
    training_set,
)
from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import tuned_checkpoint
from pipeline.ingest.chunk import IngestConfig
from pipeline.validation import verify
from tests.pipeline import datasets
from tests.pipeline.defs.conftest import (
    STEPS,
    Made,
    execute,
    failure,
    materialised,
    one,
    random_pgn,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("without_children")
UNAUDITED: dict[str, object] = {"training_set": {"audit": False}}


@pytest.fixture
def instance() -> Any:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def metadata(made: Made, node: str) -> dict[str, Any]:
    (event,) = made[1].asset_materializations_for_node(node)
    return {name: value.value for name, value in event.metadata.items()}


def positions_of(directory: Path) -> dict[str, list[tuple[bytes, int]]]:
    """Return each split's positions: planes and castling rights, as they lie in the files."""
    found: dict[str, list[tuple[bytes, int]]] = {}
    for row in datasets.table(directory).select(["planes", "castling", "split"]).to_pylist():
        found.setdefault(row["split"], []).append((row["planes"], row["castling"]))
    return found


def count_shared(keys: dict[str, list[tuple[bytes, int]]]) -> int:
    """Count positions of test that train holds."""
    return sum(key in set(keys["train"]) for key in keys["test"])


def read_report(made: Made) -> tuple[Path, dict[str, Any]]:
    (path,) = (made[0] / "reports").glob("*/*/report.json")
    return path, json.loads(path.read_text())


def test_everything_materialises_and_the_blocking_checks_pass(made: Made) -> None:
    events = made[1].get_asset_materialization_events()
    assert {(event.asset_key, event.partition) for event in events} == {
        *((asset.key, "small") for asset in (dump, positions)),
        *((it.key, None) for it in (training_set, checkpoint, accuracy_report, leaderboard)),
    }
    found = verdicts(made[1])
    blocking = {checks.FILES, checks.SPLITS, checks.ROWS, checks.WHOLE, checks.SIDES, checks.LOSS}
    assert set(found) == blocking | {checks.CLASSICAL}
    assert all(found[name] for name in blocking)
    evaluations = made[1].get_asset_check_evaluations()
    (rows,) = [check for check in evaluations if check.check_name == checks.ROWS]
    assert rows.metadata["rows_compared"].value == rows.metadata["rows_wanted"].value == 64
    assert "top1 " in made[1].output
    assert "http://127.0.0.1:3000" in made[1].output


def test_positions_and_training_sets_say_what_is_in_them(made: Made) -> None:
    directory = made[0] / "positions" / "small"
    manifest, said = read_manifest(directory), metadata(made, "positions")
    assert said["dagster/row_count"] == manifest["positions"]["total"] == 60 * 40
    assert said["games_read"] == 60
    columns = {column.name for column in said["dagster/column_schema"].columns}
    assert columns >= {"own_pawns", "moves_1", "label", "result"}
    assert str(said["sample_of_positions"]).count("](/reports/pictures/") == 6
    said, keys = metadata(made, "training_set"), positions_of(directory)
    assert said["dagster/row_count"] == manifest["positions"]["train"]
    distinct = len(set().union(*keys.values()))
    assert said["copies_share"] == pytest.approx(1 - distinct / (60 * 40), abs=1e-6)
    records = [row.data for row in said["test_positions_in_train"].records]
    (test,) = [row for row in records if row["split"] == "test"]
    assert test["in_train"] == count_shared(keys)
    assert Path(str(said["audit_page"])).read_text().startswith("# Audit of 2,400 positions")
    card = json.loads(Path(metadata(made, "checkpoint")["path"], "checkpoint.json").read_text())
    assert card["data"]["training_sets"][0]["name"] == Path(str(said["path"])).name
    assert [dataset["name"] for dataset in card["data"]["datasets"]] == ["small"]


def test_pictures_are_pictures(made: Made) -> None:
    """Markdown of 1,000 characters and more would be shown behind a link only."""
    for node, names in {
        "positions": ("elo", "sample_of_positions"),
        "checkpoint": ("curves",),
        "accuracy_report": ("accuracy", "boards"),
    }.items():
        for name in names:
            markdown = str(metadata(made, node)[name])
            assert len(markdown) < 1000, name
            for file in re.findall(r"\(/reports/([^)]+)\)", markdown):
                begins = b"\x89PNG\r\n" if file.endswith(".png") else b"<svg"
                assert (made[0] / "reports" / file).read_bytes().startswith(begins), file


def test_the_report_has_one_headline_everywhere_and_tells_apart_what_stands_in_train(
    made: Made,
) -> None:
    path, report = read_report(made)
    said, page = metadata(made, "accuracy_report"), (path.parent / "report.html").read_text()
    assert (said["headline"], said["top1"]) == (report["headline"], report["top1"])
    assert report["headline"] in page
    assert "positions seen" in page, "the training curve"
    assert report["headline"] in " ".join(made[1].output.split())
    (run,) = made[1].instance.get_runs()
    assert run.tags["top1"] == f"{100 * report['top1']:.1f} %"
    assert run.tags["top1"] in report["headline"]
    assert next(iter(said)) == "top1", "a run's page shows the first entries of it"
    (joined,) = (made[0] / "training_sets").glob("*/training_set.json")
    (row,) = metadata(made, "leaderboard")["leaderboard"].records
    assert (row.data["top1"], row.data["dataset"]) == (round(report["top1"], 4), joined.parent.name)
    assert said["page"] == f"/reports/{path.parents[1].name}/{joined.parent.name}/report.html"
    assert said["checkpoint"] == metadata(made, "checkpoint")["path"]
    rows = {row["band"]: row for row in report["slices"]["in train"]}
    keys = positions_of(made[0] / "positions" / "small")
    assert rows["in train too"]["positions"] == count_shared(keys)
    assert sum(row["positions"] for row in rows.values()) == report["positions"]
    hits = sum(row["positions"] * row["top1"] for row in rows.values())
    assert hits == pytest.approx(report["top1"] * report["positions"])
    # the probe draws its rows from row groups
    probe = tasks.probe(Path(said["checkpoint"]), made[0] / "positions" / "small", "test", 10**6)
    assert probe["loss"] == pytest.approx(said["cross_entropy"], rel=0.2)


def test_a_report_is_of_its_own_runs_checkpoint(instance: dg.DagsterInstance) -> None:
    @dg.asset(name="checkpoint", config_schema={"path": str})
    def network(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        path = context.op_execution_context.op_config["path"]
        return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(path)})

    @dg.asset
    def other() -> None:
        return

    idle = dg.materialize([other], instance=instance)
    with pytest.raises(UserError, match="no checkpoint has been"):
        find_folder(checkpoint.key, instance, idle.dagster_run)
    first, second = (
        dg.materialize([network], instance=instance, run_config=config)
        for config in ({"ops": {"checkpoint": {"config": {"path": path}}}} for path in ("/1", "/2"))
    )
    assert find_folder(checkpoint.key, instance, first.dagster_run) == Path("/1")
    assert find_folder(checkpoint.key, instance, second.dagster_run) == Path("/2")
    assert find_folder(checkpoint.key, instance, idle.dagster_run) == Path("/2")
    again = idle.dagster_run._replace(parent_run_id=first.run_id, root_run_id=first.run_id)
    assert find_folder(checkpoint.key, instance, again) == Path("/1")


def test_a_shard_that_has_changed_since_fails_a_run_that_only_trains(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    """A failed check blocks its own run only: the next one must not train on wins that are
    losses."""
    shard = next((copied / "positions" / "small").glob("train-*.parquet"))
    table = pq.read_table(shard)
    at = table.schema.get_field_index("result")
    negated = pa.array(-table["result"].to_numpy(), pa.int8())
    write_rows(table.set_column(at, table.schema.field(at), negated), shard)
    register(instance, Datasets())
    result = execute("train", instance, UNAUDITED | {"checkpoint": STEPS})
    assert f"{shard.name} cannot be read" in failure(result, "training_set")
    assert not result.asset_materializations_for_node("checkpoint")


def test_other_options_are_refused_unless_replacing(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    register(instance, Datasets())
    options = {"workers": 1, "ingest": {"test_share": 0.3, "val_share": 0.2}}
    build = partial(execute, "build_positions", instance)
    said = failure(build({"positions": options}, "small"), "positions")
    assert "other settings (test_share, val_share)" in said
    assert "replace: true" in said
    assert "--out" not in said, "the remedy is Dagster's"
    assert build({"positions": options | {"replace": True}}, "small").success
    assert read_manifest(copied / "positions" / "small")["config"]["test_share"] == 0.3


def test_replacing_takes_the_lock_and_leaves_what_is_not_of_the_dataset(copied: Path) -> None:
    directory = copied / "positions" / "small"
    config = IngestConfig(test_share=0.3)
    ask = partial(tasks.ingest, copied / "dumps" / "small.pgn", directory, config)
    ask = partial(ask, workers=1, engine="local", replace=True, progress=silent, stop=lambda: False)
    before = sorted(directory.iterdir())
    with (
        FileLock(directory / ".lock"),
        pytest.raises(UserError, match="another process"),
    ):
        ask()
    (directory / "strange.parquet").write_text("somebody's")
    with pytest.raises(UserError, match=r"strange\.parquet"):
        ask()
    (directory / "strange.parquet").unlink()
    assert sorted(directory.iterdir()) == before
    assert ask()["config"]["test_share"] == 0.3
    assert verify.files_differ(directory) == []


def test_a_damaged_dump_gives_positions_and_a_warning(
    root: Path, instance: dg.DagsterInstance
) -> None:
    (root / "dumps" / "small.pgn").unlink()
    packed = gzip.compress(random_pgn(200).encode())
    (root / "dumps" / "broken.pgn.gz").write_bytes(packed[: len(packed) // 2])
    register(instance, Datasets())
    result = execute("build_positions", instance, {"positions": {"workers": 1}}, "broken")
    assert result.success
    found = verdicts(result)
    assert (found[checks.WHOLE], found[checks.ROWS]) == (False, True)


def test_mistakes_are_said_plainly(root: Path, instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("dumps", ["gone"])
    (root / "sample" / "games.pgn").mkdir(parents=True)
    (root / "dumps" / "empty.pgn").write_text("")
    register(instance, Datasets())
    build = partial(execute, "build_positions", instance, {})
    assert "there is no dump 'gone'" in failure(build("gone"), "dump")
    assert "is a directory" in failure(build("sample"), "dump")
    assert "empty" in failure(build("empty"), "positions")
    assert "materialize `positions`" in failure(execute("train", instance, {}), "training_set")
    (root / "dumps" / "small.pgn.gz").write_text("")
    assert "have the same name 'small'" in failure(build("small"), "dump")


def test_a_run_is_continued_by_its_name_and_no_shorter_one_is_accepted(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    """`make run` began it from scratch, and the job would start so few games elsewhere."""
    (folder,) = [path for path in (copied / "checkpoints").iterdir() if path.is_dir()]
    assert re.fullmatch(r"fianchetto-human-[0-9a-f]{8}", folder.name)

    def train(**options: object) -> dg.ExecuteInProcessResult:
        return execute("train", instance, UNAUDITED | {"checkpoint": options})

    both = train(minutes=1.0, train={"steps": 5})
    assert "exactly one of minutes" in failure(both, "checkpoint")
    minutes = json.loads((folder / "checkpoint.json").read_text())["seconds"] / 60 + 0.01
    grown = train(name=folder.name, minutes=minutes)
    assert grown.success, failure(grown, "checkpoint")
    assert json.loads((folder / "checkpoint.json").read_text())["config"]["minutes"] == minutes
    shorter = train(name=folder.name, minutes=0.001)
    assert "more than 0.001" in failure(shorter, "checkpoint")


def test_a_dump_that_has_changed_is_built_anew(copied: Path, instance: dg.DagsterInstance) -> None:
    dump = copied / "dumps" / "small.pgn"
    dump.write_text(random_pgn(30, seed=5))
    register(instance, Datasets())
    result = execute("build_positions", instance, {"positions": {"workers": 1}}, "small")
    assert result.success
    assert all(verdicts(result).values())
    (source,) = read_manifest(copied / "positions" / "small")["sources"]
    assert source["sha256"] == hashlib.sha256(dump.read_bytes()).hexdigest()


@pytest.mark.parametrize("asset", [training_set, tuned_checkpoint])
def test_materialised_positions_that_are_not_there_are_named(
    copied: Path, asset: dg.AssetsDefinition, instance: dg.DagsterInstance
) -> None:
    small = copied / "positions" / "small"
    shutil.copytree(small, copied / "positions" / ".small.building-0123456789abcdef")
    shutil.move(small, copied / "positions" / "other")
    (network,) = (card.parent.name for card in copied.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {} if asset is training_set else {"checkpoint": network}
    key = None if asset is training_set else "first"
    instance.add_dynamic_partitions("tunings", ["first"])
    materialised(instance, "small")
    materialised(instance, "other")
    said = one(asset, instance, options, key)
    assert said.startswith("positions of small are materialized but missing in"), said
    assert one(asset, instance, options | {"positions": ["small"]}, key) == said
    if asset is training_set:
        assert one(asset, instance, {"positions": ["other"], "audit": False}) == ""
        instance.delete_dynamic_partition("dumps", "small")
        assert one(asset, instance, {"audit": False}) == ""
        (page,) = copied.glob("training_sets/*/training_set.json")
        entries = json.loads(page.read_text())["datasets"]
        assert [entry["name"] for entry in entries] == ["other"]


def test_a_report_is_of_one_named_dataset_or_its_own_training_set(
    copied: Path, instance: dg.DagsterInstance
) -> None:
    (network,) = (card.parent.name for card in copied.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {"checkpoint": network, "rule": {"limit": 50}}
    report = partial(one, accuracy_report, instance)
    assert "no positions called nosuch" in report(options | {"positions": "nosuch"})
    assert "no training_set has been materialized" in report(options)
    assert report(options | {"positions": "small"}) == ""
    found = json.loads((copied / "reports" / network / "small" / "report.json").read_text())
    assert found["positions"] == 50
    for name in ("own", "newest"):
        chosen: dict[str, object] = {"positions": ["small"], "name": name, "audit": False}
        assert one(training_set, instance, chosen) == ""
    paths = {"path": copied / "checkpoints" / network, "trained_on": copied / "training_sets/own"}
    known = {name: dg.MetadataValue.path(path) for name, path in paths.items()}
    instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key, metadata=known))
    assert report(options) == ""
    assert (copied / "reports" / network / "own" / "report.json").exists()
    assert not (copied / "reports" / network / "newest").exists()


def test_without_names_the_datasets_of_dumps_are_joined_and_the_sample_only_alone(
    root: Path,
) -> None:
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


@pytest.mark.parametrize(
    ("asset", "below"), [(checkpoint, training_set), (accuracy_report, checkpoint)]
)
def test_a_materialised_folder_that_is_not_there_is_named(
    root: Path,
    asset: dg.AssetsDefinition,
    below: dg.AssetsDefinition,
    instance: dg.DagsterInstance,
) -> None:
    said = {"path": dg.MetadataValue.path(root / "gone")}
    instance.report_runless_asset_event(dg.AssetMaterialization(below.key, metadata=said))
    assert f"the {below.key.path[0]} that was materialized last, is missing" in one(
        asset, instance, {}
    )
