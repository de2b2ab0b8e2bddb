"""A training set gives the rows of its datasets and no others, copies none, and keeps the latest month apart."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import file_hash
from pipeline.dataset.join import JoinConfig, join
from pipeline.dataset.training_set import TRAINING_SET, read_training_set, split_shards
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.training import train as training
from tests.pipeline import datasets
from tests.pipeline.months import month

Months = dict[str, Path]
COLUMNS = ("planes", "label", "game", "ply", "elo", "result")


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """Three months; the last one also holds the first twelve games of the first."""
    folder = tmp_path_factory.mktemp("months")
    return {
        "2014.05": month(folder, "2014.05", list(range(40))),
        "2014.06": month(folder, "2014.06", list(range(40, 70)), control="180+0"),
        "2014.07": month(folder, "2014.07", list(range(70, 90)) + list(range(12))),
    }


def joined(months: Months, out: Path, **options: Any) -> dict[str, Any]:
    return join(list(months.values()), out, JoinConfig(**options))


def rows(out: Path, split: str) -> Counter[bytes]:
    """Give the rows of a split as bytes, each as often as it comes."""
    found: Counter[bytes] = Counter()
    for batch in Batches([out], split, batch_size=7, columns=COLUMNS).once():
        found.update(b"".join(batch[name][row].tobytes() for name in COLUMNS) for row in range(len(batch["label"])))
    return found


def stored(paths: list[Path], splits: tuple[str, ...]) -> Counter[bytes]:
    """Give the rows of datasets in the same form, read without the code that batches use."""
    kinds = {"label": "<u2", "game": "<u4", "ply": "<u2", "elo": "<u2", "result": "i1"}
    found: Counter[bytes] = Counter()
    for path in paths:
        for row in datasets.table(path).to_pylist():
            if row["split"] in splits:
                numbers = (np.array(row[name], dtype=kind).tobytes() for name, kind in kinds.items())
                found[row["planes"] + b"".join(numbers)] += 1
    return found


def test_the_splits_are_those_of_the_datasets_and_the_latest_month_stands_apart(months: Months, tmp_path: Path) -> None:
    page = joined(months, tmp_path / "set")
    earlier, latest = list(months.values())[:2], [months["2014.07"]]
    for split in ("train", "val", "test"):
        assert rows(tmp_path / "set", split) == stored(earlier, (split,))
    assert rows(tmp_path / "set", "latest") == stored(latest, ("train", "val", "test"))
    assert page["positions"] == {split: rows(tmp_path / "set", split).total() for split in page["positions"]}
    assert [entry["held_out"] for entry in page["datasets"]] == [False, False, True]


def test_a_game_that_train_and_a_test_hold_is_noticed(months: Months, tmp_path: Path) -> None:
    page = joined(months, tmp_path / "set")
    train = {game["site"] for game in datasets.games(months["2014.05"]) if game["split"] == "train"}
    both = [game for game in datasets.games(months["2014.07"]) if game["site"] in train]
    assert 0 < len(both) < 12
    assert page["games_on_both_sides"]["latest"] == len(both)
    assert page["games_on_both_sides"]["test"] == page["games_on_both_sides"]["val"] == 0
    assert joined(months, tmp_path / "all", hold_out="none")["games_on_both_sides"]["latest"] == 0


def test_joining_copies_nothing_and_appending_a_month_rewrites_none(months: Months, tmp_path: Path) -> None:
    before = {name: datasets.content(path) for name, path in months.items()}
    first, second, third = months.values()
    page = join([first, second], tmp_path / "set")
    again = join([second, first], tmp_path / "set")
    assert again == page
    longer = join([third], tmp_path / "set")
    keys = ("name", "path", "manifest_sha256", "first_date", "last_date")
    assert [[entry[key] for key in keys] for entry in longer["datasets"][:2]] == [
        [entry[key] for key in keys] for entry in page["datasets"]
    ]
    assert [entry["held_out"] for entry in page["datasets"]] == [False, True]
    assert [entry["held_out"] for entry in longer["datasets"]] == [False, False, True]
    assert {path.name for path in (tmp_path / "set").iterdir()} == {TRAINING_SET, ".lock"}
    assert {name: datasets.content(path) for name, path in months.items()} == before


def test_a_dataset_leaves_only_when_it_is_named(months: Months, tmp_path: Path) -> None:
    joined(months, tmp_path / "set")
    assert len(join([months["2014.05"]], tmp_path / "set")["datasets"]) == 3
    page = join([], tmp_path / "set", remove=["2014.06"])
    assert [entry["name"] for entry in page["datasets"]] == ["2014.05", "2014.07"]
    with pytest.raises(ConfigError, match="holds no dataset 'nosuch'"):
        join([], tmp_path / "set", remove=["nosuch"])
    assert months["2014.06"].is_dir()


def test_a_set_and_its_datasets_can_be_moved_together(months: Months, tmp_path: Path) -> None:
    shutil.copytree(months["2014.05"].parent, tmp_path / "here" / "positions")
    join(sorted((tmp_path / "here" / "positions").iterdir()), tmp_path / "here" / "sets" / "all")
    (tmp_path / "here").rename(tmp_path / "there")
    assert rows(tmp_path / "there" / "sets" / "all", "test") == stored(list(months.values())[:2], ("test",))


def test_a_dataset_that_changed_since_is_refused(months: Months, tmp_path: Path) -> None:
    copied = shutil.copytree(months["2014.05"].parent, tmp_path / "positions")
    join(sorted(copied.iterdir()), tmp_path / "set")
    manifest = json.loads((copied / "2014.05" / "manifest.json").read_bytes())
    (copied / "2014.05" / "manifest.json").write_text(json.dumps(manifest, indent=1))
    with pytest.raises(DatasetError, match=r"2014\.05 has changed since it was joined"):
        Batches([tmp_path / "set"])
    with pytest.raises(DatasetError, match=r"--remove 2014\.05"):
        join([], tmp_path / "set")
    page = join([copied / "2014.05"], tmp_path / "set", remove=["2014.05"])
    assert file_hash(copied / "2014.05" / "manifest.json") in {entry["manifest_sha256"] for entry in page["datasets"]}


def test_mistakes_are_refused_and_leave_nothing(months: Months, tmp_path: Path) -> None:
    out = tmp_path / "set"
    with pytest.raises(DatasetError, match="not a directory"):
        join([tmp_path / "nosuch"], out)
    with pytest.raises(ConfigError, match="at least one dataset"):
        join([], out)
    with pytest.raises(ConfigError, match="no dataset is called 'x'"):
        joined(months, out, hold_out="x")
    with pytest.raises(DatasetError, match="no positions to train on"):
        join([months["2014.05"]], out, JoinConfig(hold_out="2014.05"))
    with pytest.raises(Stopped):
        join(list(months.values()), out, stop=lambda: True)
    assert not out.exists()
    joined(months, out)
    with pytest.raises(DatasetError, match="joined with hold_out 'latest', not 'none'"):
        joined(months, out, hold_out="none")
    with pytest.raises(DatasetError, match="is a training set"):
        join([out], tmp_path / "other")
    with pytest.raises(DatasetError, match="is a dataset"):
        join([months["2014.05"]], months["2014.06"])
    with FileLock(out / ".lock"), pytest.raises(DatasetError, match="another join"):
        joined(months, out)
    with pytest.raises(DatasetError, match="is a split of training sets only"):
        split_shards(months["2014.05"], "latest")


@pytest.mark.parametrize(
    "damage",
    [
        lambda page: b"{",
        lambda page: b"[]",
        lambda page: json.dumps(page | {"training_set_version": 1}).encode(),
        lambda page: json.dumps(page | {"datasets": []}).encode(),
        lambda page: json.dumps(page | {"datasets": [{"name": "x"}]}).encode(),
        lambda page: json.dumps(page | {"positions": page["positions"] | {"train": 3}}).encode(),
    ],
)
def test_a_damaged_page_is_refused(months: Months, tmp_path: Path, damage: Any) -> None:
    page = joined(months, tmp_path / "set")
    (tmp_path / "set" / TRAINING_SET).write_bytes(damage(page))
    with pytest.raises(DatasetError):
        Batches([tmp_path / "set"])


def test_a_checkpoints_card_names_what_was_trained_on_and_not_what_was_held_out(months: Months, tmp_path: Path) -> None:
    joined(months, tmp_path / "set")
    data = training.describe_data([tmp_path / "set"])
    assert [dataset["name"] for dataset in data["datasets"]] == ["2014.05", "2014.06"]
    assert data["training_sets"][0]["sha256"] == file_hash(tmp_path / "set" / TRAINING_SET)
    assert "training_sets" not in training.describe_data([months["2014.05"]])
    assert read_training_set(tmp_path / "set")["positions"] == data["training_sets"][0]["positions"]
