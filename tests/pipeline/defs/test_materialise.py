"""Everything on a small real dump, in this process: what the assets say, and what their checks
notice."""

import gzip
import hashlib
import json
import re
import shutil
from functools import partial
from pathlib import Path

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
from pipeline.defs.jobs import new_dumps, register
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import tuned_checkpoint
from pipeline.ingest.chunk import IngestConfig
from pipeline.validation import verify
from tests.pipeline import datasets
from tests.pipeline.defs.conftest import (
    STEPS,
    Made,
    Ran,
    execute,
    failure,
    materialised,
    one,
    random_pgn,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("without_children")


def metadata(result: dg.ExecuteInProcessResult | Ran, node: str) -> dict[str, object]:
    (event,) = result.asset_materializations_for_node(node)
    return {name: value.value for name, value in event.metadata.items()}


def positions_of(directory: Path) -> dict[str, list[tuple[bytes, int]]]:
    """Give each split's positions: planes and castling rights, as they lie in the files."""
    found: dict[str, list[tuple[bytes, int]]] = {}
    for row in datasets.table(directory).select(["planes", "castling", "split"]).to_pylist():
        found.setdefault(row["split"], []).append((row["planes"], row["castling"]))
    return found


def shared(keys: dict[str, list[tuple[bytes, int]]]) -> int:
    """Count positions of test that train holds."""
    train = set(keys["train"])
    return sum(key in train for key in keys["test"])


def test_everything_materialises(made: Made) -> None:
    found = {
        (event.asset_key, event.partition) for event in made[1].get_asset_materialization_events()
    }
    whole = {
        (asset.key, None) for asset in (training_set, checkpoint, accuracy_report, leaderboard)
    }
    assert found == {(dump.key, "small"), (positions.key, "small")} | whole


def test_the_blocking_checks_pass(made: Made) -> None:
    found = verdicts(made[1])
    assert set(found) == {
        checks.FILES,
        checks.SPLITS,
        checks.ROWS,
        checks.WHOLE,
        checks.SIDES,
        checks.LOSS,
        checks.CLASSICAL,
    }
    assert all(passed for name, passed in found.items() if name != checks.CLASSICAL)
    (rows,) = [
        check for check in made[1].get_asset_check_evaluations() if check.check_name == checks.ROWS
    ]
    assert rows.metadata["rows_compared"].value == rows.metadata["rows_wanted"].value == 64


def test_positions_say_what_a_person_asks(made: Made) -> None:
    said = metadata(made[1], "positions")
    manifest = read_manifest(made[0] / "positions" / "small")
    assert said["dagster/row_count"] == manifest["positions"]["total"] == 60 * 40
    assert said["games_read"] == 60
    assert {column.name for column in said["dagster/column_schema"].columns} >= {
        "own_pawns",
        "moves_1",
        "label",
        "result",
    }  # type: ignore[attr-defined]
    assert str(said["sample_of_positions"]).count("](/reports/pictures/") == 6


def test_pictures_are_pictures(made: Made) -> None:
    """Markdown of 1,000 characters and more would be shown behind a link only."""
    shown = {
        "positions": ("elo", "sample_of_positions"),
        "checkpoint": ("curves",),
    }
    for node, names in (shown | {"accuracy_report": ("accuracy", "boards")}).items():
        for name in names:
            markdown = str(metadata(made[1], node)[name])
            assert len(markdown) < 1000, name
            for file in re.findall(r"\(/reports/([^)]+)\)", markdown):
                begins = b"\x89PNG\r\n" if file.endswith(".png") else b"<svg"
                assert (made[0] / "reports" / file).read_bytes().startswith(begins), file


def test_a_training_set_says_what_is_in_it(made: Made) -> None:
    said, manifest = (
        metadata(made[1], "training_set"),
        read_manifest(made[0] / "positions" / "small"),
    )
    assert said["dagster/row_count"] == manifest["positions"]["train"]
    keys = positions_of(made[0] / "positions" / "small")
    total = sum(map(len, keys.values()))
    assert said["copies_share"] == pytest.approx(
        1 - len(set().union(*keys.values())) / total, abs=1e-6
    )
    (test,) = [
        row.data for row in said["test_positions_in_train"].records if row.data["split"] == "test"
    ]  # type: ignore[attr-defined]
    assert test["in_train"] == shared(keys)
    assert Path(str(said["audit_page"])).read_text().startswith("# Audit of 2,400 positions")
    card = json.loads(
        (Path(str(metadata(made[1], "checkpoint")["path"])) / "checkpoint.json").read_text()
    )
    assert card["data"]["training_sets"][0]["name"] == Path(str(said["path"])).name


def test_the_report_tells_apart_what_stands_in_train(made: Made) -> None:
    (path,) = (made[0] / "reports").glob("*/*/report.json")
    report = json.loads(path.read_text())
    bands = {row["band"]: row["positions"] for row in report["slices"]["in train"]}
    assert bands["in train too"] == shared(positions_of(made[0] / "positions" / "small"))
    assert sum(bands.values()) == report["positions"]
    hits = sum(row["positions"] * row["top1"] for row in report["slices"]["in train"])
    assert hits == pytest.approx(report["top1"] * report["positions"])


def test_the_report_has_one_headline_everywhere(made: Made) -> None:
    said = metadata(made[1], "accuracy_report")
    (joined,) = (made[0] / "training_sets").glob("*/training_set.json")
    (path,) = (made[0] / "reports").glob("*/*/report.json")
    report = json.loads(path.read_text())
    assert (said["headline"], said["top1"]) == (report["headline"], report["top1"])
    page = (path.parent / "report.html").read_text()
    assert report["headline"] in page
    assert "positions seen" in page, "the training curve"
    assert report["headline"] in " ".join(made[1].output.split())
    share = f"{100 * report['top1']:.1f} %"
    assert f"The network finds {share}" in report["headline"]
    (run,) = made[1].instance.get_runs()
    assert run.tags["top1"] == share
    assert next(iter(said)) == "top1", "a run's page shows the first entries of it"
    (row,) = metadata(made[1], "leaderboard")["leaderboard"].records  # type: ignore[attr-defined]
    assert (row.data["top1"], row.data["dataset"]) == (round(report["top1"], 4), joined.parent.name)
    assert said["page"] == f"/reports/{path.parents[1].name}/{joined.parent.name}/report.html"
    assert 0 <= said["top1"] <= said["top3"] <= said["top5"] <= 1  # type: ignore[operator]
    assert said["positions"] == read_manifest(made[0] / "positions" / "small")["positions"]["test"]
    assert str(said["boards"]).count("](/reports/") == sum(
        map(bool, report["details"]["boards"].values())
    )
    assert said["checkpoint"] == metadata(made[1], "checkpoint")["path"]


def test_a_report_is_of_its_own_runs_checkpoint() -> None:
    @dg.asset(name="checkpoint", config_schema={"path": str})
    def network(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return dg.MaterializeResult(
            metadata={"path": dg.MetadataValue.path(context.op_execution_context.op_config["path"])}
        )

    @dg.asset
    def other() -> None:
        return

    with dg.DagsterInstance.ephemeral() as instance:
        configs = [
            {"ops": {"checkpoint": {"config": {"path": path}}}} for path in ("/first", "/second")
        ]
        first, second = (
            dg.materialize([network], instance=instance, run_config=config) for config in configs
        )
        idle = dg.materialize([other], instance=instance)
        assert find_folder(checkpoint.key, instance, first.dagster_run) == Path("/first")
        assert find_folder(checkpoint.key, instance, second.dagster_run) == Path("/second")
        assert find_folder(checkpoint.key, instance, idle.dagster_run) == Path("/second")
        again = idle.dagster_run._replace(parent_run_id=first.run_id, root_run_id=first.run_id)
        assert find_folder(checkpoint.key, instance, again) == Path("/first")
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(UserError, match="no checkpoint has been"),
    ):
        find_folder(
            checkpoint.key, instance, dg.materialize([other], instance=instance).dagster_run
        )


def test_a_shard_that_has_changed_since_fails_a_run_that_only_trains(
    made: Made, copied: Path
) -> None:
    """A failed check blocks its own run only: the next one must not train on wins that are
    losses."""
    shard = next((copied / "positions" / "small").glob("train-*.parquet"))
    table = pq.read_table(shard)
    negated = pa.array(-table["result"].to_numpy(), pa.int8())
    at = table.schema.get_field_index("result")
    write_rows(table.set_column(at, table.schema.field(at), negated), shard)
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("train", instance, {"training_set": {"audit": False}, "checkpoint": STEPS})
        said = failure(result, "training_set")
    assert f"{shard.name} cannot be read: it is not the file that the manifest names" in said
    assert not result.asset_materializations_for_node("checkpoint")


def test_other_options_are_refused_unless_replacing(copied: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        options = {"workers": 1, "ingest": {"test_share": 0.3, "val_share": 0.2}}
        refused = execute("build_positions", instance, {"positions": options}, "small")
        assert "other settings" in failure(refused, "positions")
        assert (copied / "positions" / "small" / "manifest.json").exists()
        replaced = execute(
            "build_positions", instance, {"positions": options | {"replace": True}}, "small"
        )
    assert replaced.success
    assert read_manifest(copied / "positions" / "small")["config"]["test_share"] == 0.3


def test_replacing_takes_the_lock_and_leaves_what_is_not_of_the_dataset(copied: Path) -> None:
    directory = copied / "positions" / "small"
    ask = partial(
        tasks.ingest, copied / "dumps" / "small.pgn", directory, IngestConfig(test_share=0.3)
    )
    ask = partial(ask, workers=1, engine="local", replace=True, progress=silent, stop=lambda: False)
    before = sorted(directory.iterdir())
    with (
        FileLock(directory / ".lock"),
        pytest.raises(UserError, match="another process"),
    ):
        ask()
    assert sorted(directory.iterdir()) == before
    (directory / "strange.parquet").write_text("somebody's")
    with pytest.raises(UserError, match=r"strange\.parquet"):
        ask()
    (directory / "strange.parquet").unlink()
    assert sorted(directory.iterdir()) == before
    manifest = ask()
    assert manifest["config"]["test_share"] == 0.3
    assert verify.files_differ(directory) == []


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
    (rows,) = [
        check for check in result.get_asset_check_evaluations() if check.check_name == checks.ROWS
    ]
    assert rows.metadata["rows_compared"].value == 64


def test_mistakes_are_said_plainly(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        instance.add_dynamic_partitions("dumps", ["gone"])
        assert "there is no dump 'gone'" in failure(
            execute("build_positions", instance, {}, "gone"), "dump"
        )
        (root / "sample" / "games.pgn").mkdir(parents=True)
        register(instance, Datasets())
        assert "is a directory" in failure(
            execute("build_positions", instance, {}, "sample"), "dump"
        )
        assert "materialize `positions`, or name" in failure(
            execute("train", instance, {}), "training_set"
        )
        (root / "dumps" / "empty.pgn").write_text("")
        register(instance, Datasets())
        assert "empty" in failure(execute("build_positions", instance, {}, "empty"), "positions")
        (root / "dumps" / "small.pgn.gz").write_text("")
        assert "have the same name 'small'" in failure(
            execute("build_positions", instance, {}, "small"), "dump"
        )


def test_a_checkpoint_is_named_by_its_run_and_refused_when_unknown(copied: Path) -> None:
    (folder,) = [path for path in (copied / "checkpoints").iterdir() if path.is_dir()]
    assert re.fullmatch(r"fianchetto-human-[0-9a-f]{8}", folder.name)
    with dg.DagsterInstance.ephemeral() as instance:
        unaudited = {"training_set": {"audit": False}}
        both = {"checkpoint": {"minutes": 1.0, "train": {"steps": 5}}}
        wrong = execute("train", instance, unaudited | both)
        assert "exactly one of minutes" in failure(wrong, "checkpoint")
        longer = {"name": folder.name, "minutes": 0.03, "start": "scratch"}
        grown = execute("train", instance, unaudited | {"checkpoint": longer})
        assert grown.success, failure(grown, "checkpoint")
        assert json.loads((folder / "checkpoint.json").read_text())["config"]["minutes"] == 0.03


def test_the_probe_of_a_checkpoint_agrees_with_its_report(made: Made) -> None:
    (network,) = [path for path in (made[0] / "checkpoints").iterdir() if path.is_dir()]
    probe = tasks.probe(network, made[0] / "positions" / "small", "test", 10**6)
    said = metadata(made[1], "accuracy_report")
    # the probe draws its rows from row groups
    assert probe["loss"] == pytest.approx(said["cross_entropy"], rel=0.2)


def test_the_sensor_bears_a_file_that_goes_while_it_looks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Datasets, "dumps", lambda datasets: {"gone": [root / "dumps" / "gone.pgn"]})
    with dg.DagsterInstance.ephemeral() as instance:
        assert isinstance(
            new_dumps(dg.build_sensor_context(instance=instance), datasets=Datasets()),
            dg.SkipReason,
        )


def test_a_dump_that_has_changed_is_built_anew(copied: Path) -> None:
    dump = copied / "dumps" / "small.pgn"
    dump.write_text(random_pgn(30, seed=5))
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("build_positions", instance, {"positions": {"workers": 1}}, "small")
        other = {"workers": 1, "ingest": {"test_share": 0.2, "val_share": 0.2}}
        refused = execute("build_positions", instance, {"positions": other}, "small")
    assert result.success
    assert all(verdicts(result).values())
    (source,) = read_manifest(copied / "positions" / "small")["sources"]
    assert source["sha256"] == hashlib.sha256(dump.read_bytes()).hexdigest()
    said = failure(refused, "positions")
    assert (
        "was made with other settings (test_share, val_share): to build it again, set `replace: "
        "true` in the launchpad" in said
    )
    assert "--out" not in said


@pytest.mark.parametrize("asset", [training_set, tuned_checkpoint])
def test_materialised_positions_that_are_not_there_are_named(
    copied: Path, asset: dg.AssetsDefinition
) -> None:
    shutil.copytree(
        copied / "positions" / "small", copied / "positions" / ".small.building-0123456789abcdef"
    )
    shutil.move(copied / "positions" / "small", copied / "positions" / "other")
    (network,) = (card.parent.name for card in copied.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {} if asset is training_set else {"checkpoint": network}
    key = None if asset is training_set else "first"
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tunings", ["first"])
        materialised(instance, "small")
        materialised(instance, "other")
        said = one(asset, instance, options, key)
        assert said.startswith("positions of small are materialized but missing in"), said
        assert "materialize them again, or wipe" in said
        assert one(asset, instance, options | {"positions": ["small"]}, key) == said
        if asset is training_set:
            assert one(asset, instance, {"positions": ["other"], "audit": False}) == ""
            instance.delete_dynamic_partition("dumps", "small")
            assert one(asset, instance, {"audit": False}) == ""
            (page,) = copied.glob("training_sets/*/training_set.json")
            assert [entry["name"] for entry in json.loads(page.read_text())["datasets"]] == [
                "other"
            ]


def test_a_report_is_of_one_named_dataset_too(copied: Path) -> None:
    (network,) = (card.parent.name for card in copied.glob("checkpoints/*/checkpoint.json"))
    options: dict[str, object] = {"checkpoint": network, "rule": {"limit": 50}}
    with dg.DagsterInstance.ephemeral() as instance:
        assert "no positions called nosuch" in one(
            accuracy_report, instance, options | {"positions": "nosuch"}
        )
        assert "no training_set has been materialized" in one(accuracy_report, instance, options)
        assert one(accuracy_report, instance, options | {"positions": "small"}) == ""
        report = json.loads((copied / "reports" / network / "small" / "report.json").read_text())
        assert report["positions"] == 50
        for name in ("own", "newest"):
            assert (
                one(training_set, instance, {"positions": ["small"], "name": name, "audit": False})
                == ""
            )
        paths = {
            "path": copied / "checkpoints" / network,
            "trained_on": copied / "training_sets" / "own",
        }
        known = {name: dg.MetadataValue.path(path) for name, path in paths.items()}
        instance.report_runless_asset_event(dg.AssetMaterialization(checkpoint.key, metadata=known))
        assert one(accuracy_report, instance, options) == ""
    assert (copied / "reports" / network / "own" / "report.json").exists()
    assert not (copied / "reports" / network / "newest").exists(), (
        "its own training set is taken, not the newest"
    )


def test_without_names_the_datasets_of_dumps_are_joined_and_the_sample_only_alone(
    root: Path,
) -> None:
    for name in ("sample", "made-by-hand"):
        (root / "positions" / name).mkdir(parents=True)
        (root / "positions" / name / "manifest.json").write_text("{}")
    (root / "sample").mkdir()
    (root / "sample" / "games.pgn").write_text("x")
    found = Datasets().find_positions
    assert [path.name for path in found()] == ["sample"]
    (root / "positions" / "small").mkdir()
    (root / "positions" / "small" / "manifest.json").write_text("{}")
    assert [path.name for path in found()] == ["small"]
    assert [path.name for path in found(("small", "made-by-hand"))] == ["made-by-hand", "small"]


@pytest.mark.parametrize(
    ("asset", "below"), [(checkpoint, training_set), (accuracy_report, checkpoint)]
)
def test_a_materialised_folder_that_is_not_there_is_named(
    root: Path, asset: dg.AssetsDefinition, below: dg.AssetsDefinition
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        said = {"path": dg.MetadataValue.path(root / "gone")}
        instance.report_runless_asset_event(dg.AssetMaterialization(below.key, metadata=said))
        (what,) = below.key.path
        assert one(asset, instance, {}).startswith(
            f"{root / 'gone'}, the {what} that was materialized last, is missing"
        )
