"""A training set has exactly the rows of its datasets, without copies, and holds out new games."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import TRAINING_SET_FILE, Dataset
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.columns import SPLITS
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.evaluation.report import find_overlap
from pipeline.storage.stores import hash_file
from pipeline.training import train as training
from tests.pipeline import datasets
from tests.pipeline.months import CONFIG, month

Months = dict[str, Path]
COLUMNS = ("planes", "label", "game", "ply", "elo", "result")


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """Make three months of ten days; the third repeats twelve games of the first."""
    folder = tmp_path_factory.mktemp("months")
    return {
        "2014.05": month(folder, "2014.05", list(range(40)), days=10),
        "2014.06": month(folder, "2014.06", list(range(40, 70)), control="180+0", days=10),
        "2014.07": month(folder, "2014.07", list(range(70, 90)) + list(range(12)), days=10),
    }


def join_months(months: Months, out: Path, hold_out: str = "newest") -> dict[str, Any]:
    return join(list(months.values()), out, JoinConfig(hold_out=hold_out))


def batch_rows(batch: dict[str, Any]) -> list[bytes]:
    """Return each row of a batch as bytes."""
    return [
        b"".join(batch[name][row].tobytes() for name in COLUMNS)
        for row in range(len(batch["label"]))
    ]


def count_rows(out: Path, split: str) -> Counter[bytes]:
    """Count the rows of a split, as bytes, through `Batches`."""
    batches = Batches([out], split, batch_size=7, columns=COLUMNS).read_rows()
    return Counter(row for batch in batches for row in batch_rows(batch))


def expected_rows(
    paths: list[Path], splits: tuple[str, ...], newest: bool | None = None
) -> Counter[bytes]:
    """Count stored rows as `count_rows` does, without its code.

    With `newest`, only rows of games from the last day are counted, or only the others.
    """
    kinds = {"label": "<u2", "game": "<u4", "ply": "<u2", "elo": "<u2", "result": "i1"}
    found: Counter[bytes] = Counter()
    for path in paths:
        dates = [game["date"] for game in datasets.games(path)]
        for row in datasets.table(path).to_pylist():
            if row["split"] in splits and newest in (None, dates[row["game"]] == f"{path.name}.12"):
                numbers = [np.array(row[name], kind).tobytes() for name, kind in kinds.items()]
                found[row["planes"] + b"".join(numbers)] += 1
    return found


def test_newest_games_of_each_dataset_are_held_out(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The games of the days alternate, so most shards have rows of two splits."""
    out, paths = tmp_path / "set", list(months.values())
    page = join_months(months, out)
    for split in SPLITS:
        assert count_rows(out, split) == expected_rows(paths, (split,), newest=False)
    assert count_rows(out, "latest") == expected_rows(paths, SPLITS, newest=True)
    counts = {split: count_rows(out, split).total() for split in page["positions"]}
    assert page["positions"] == counts
    assert [entry["held_out"] for entry in page["datasets"]] == [f"{name}.12" for name in months]
    assert page["datasets"][0]["why"] == "4 of its 40 games, the newest"
    exported = Counter(split for table in fen_rows(out) for split in table["split"].to_pylist())
    assert exported == page["positions"]
    monkeypatch.setattr(Dataset, "read_games", lambda *_: pytest.fail("read the dates"))
    opened = Dataset.open(out)
    assert [opened.has_rows(split) for split in ("train", "latest", "none")] == [True, True, False]


@pytest.mark.parametrize("planes", ["all", "compact"])
def test_shuffled_batches_leave_out_held_out_rows(planes: Any, tmp_path: Path) -> None:
    config = replace(CONFIG, planes=planes)
    made = month(tmp_path, "2014.05", list(range(20)), days=10, config=config)
    join([made], tmp_path / "set")
    batches = Batches([tmp_path / "set"], batch_size=16, columns=COLUMNS)
    assert batches.packed == (planes == "compact")
    rows = [row for batch in batches for row in batch_rows(batch)]
    assert Counter(rows) == expected_rows([made], ("train",), newest=False)
    assert batch_rows(next(batches.from_step(3))) == rows[48:64]


def test_a_named_dataset_is_held_out_as_a_whole(months: Months, tmp_path: Path) -> None:
    page = join_months(months, tmp_path / "set", hold_out="2014.07")
    *earlier, latest = months.values()
    for split in SPLITS:
        assert count_rows(tmp_path / "set", split) == expected_rows(earlier, (split,))
    assert count_rows(tmp_path / "set", "latest") == expected_rows([latest], SPLITS)
    assert [entry["held_out"] for entry in page["datasets"]] == ["none", "none", "all"]


@pytest.mark.parametrize(
    ("days", "held_out", "why"),
    [(0, "none", "no dates"), (1, "none", "from one day"), (2, "2014.05.04", "5 of its 10 games")],
)
def test_held_out_games_of_a_dataset_with_few_days(
    days: int, held_out: str, why: str, tmp_path: Path
) -> None:
    made = month(tmp_path, "2014.05", list(range(10)), days=days)
    page = join([made], tmp_path / "set")
    assert page["datasets"][0]["held_out"] == held_out
    assert why in page["datasets"][0]["why"]
    assert (page["positions"]["latest"] == 0) == (held_out == "none")


def test_games_in_train_and_in_another_split_are_counted(months: Months, tmp_path: Path) -> None:
    found = join_months(months, tmp_path / "set", hold_out="2014.07")["games_on_both_sides"]
    train = {game["site"] for game in datasets.games(months["2014.05"]) if game["split"] == "train"}
    repeated = [game for game in datasets.games(months["2014.07"]) if game["site"] in train]
    assert 0 < len(repeated) < 12
    assert found == {"latest": len(repeated), "test": 0, "val": 0}
    none = join_months(months, tmp_path / "all", hold_out="none")
    assert none["games_on_both_sides"]["latest"] == 0


def test_datasets_are_added_and_removed_without_copying_them(
    months: Months, tmp_path: Path
) -> None:
    before = {name: datasets.content(path) for name, path in months.items()}
    first, second, third = months.values()
    page = join([first, second], tmp_path / "set")
    assert join([second, first], tmp_path / "set") == page
    longer = join([third], tmp_path / "set")
    assert longer["datasets"][:2] == page["datasets"]
    assert [entry["name"] for entry in longer["datasets"]] == list(months)
    shorter = join([], tmp_path / "set", remove=["2014.06"])
    assert [entry["name"] for entry in shorter["datasets"]] == ["2014.05", "2014.07"]
    assert {path.name for path in (tmp_path / "set").iterdir()} == {TRAINING_SET_FILE, ".lock"}
    assert {name: datasets.content(path) for name, path in months.items()} == before


def test_a_set_can_be_moved_with_its_datasets(months: Months, tmp_path: Path) -> None:
    shutil.copytree(months["2014.05"].parent, tmp_path / "here" / "positions")
    join(sorted((tmp_path / "here" / "positions").iterdir()), tmp_path / "here" / "sets" / "all")
    (tmp_path / "here").rename(tmp_path / "there")
    expected = expected_rows(list(months.values()), ("test",), newest=False)
    assert count_rows(tmp_path / "there" / "sets" / "all", "test") == expected


def test_a_dataset_that_changed_after_joining_is_refused(months: Months, tmp_path: Path) -> None:
    copies = shutil.copytree(months["2014.05"].parent, tmp_path / "positions")
    join(sorted(copies.iterdir()), tmp_path / "set")
    path = copies / "2014.05" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=1))
    with pytest.raises(DatasetError, match=r"2014\.05 has changed since it was joined"):
        Batches([tmp_path / "set"])
    with pytest.raises(DatasetError, match=r"--remove 2014\.05"):
        join([], tmp_path / "set")
    page = join([copies / "2014.05"], tmp_path / "set", remove=["2014.05"])
    assert hash_file(path) in {entry["manifest_sha256"] for entry in page["datasets"]}


def test_invalid_joins_are_refused_and_write_nothing(months: Months, tmp_path: Path) -> None:
    out, first = tmp_path / "set", months["2014.05"]
    copy = shutil.copytree(first, tmp_path / "copy")

    def refuse(words: str, paths: list[Path], to: Path, hold: str = "newest", **more: Any) -> None:
        with pytest.raises((ConfigError, DatasetError, Stopped), match=words):
            join(paths, to, JoinConfig(hold_out=hold), **more)

    refuse("not a directory", [tmp_path / "nosuch"], out)
    refuse("at least one dataset", [], out)
    refuse("no dataset is called 'x'", [first], out, hold="x")
    refuse("no positions are left to train on", [first], out, hold="2014.05")
    refuse("have the same manifest", [first, copy], out)
    refuse("stopped", [first], out, stop=lambda: True)
    assert not out.exists()
    join_months(months, out)
    refuse("have the same manifest", [copy], out)
    refuse("hold_out 'newest', not 'none'", [first], out, hold="none")
    refuse("has no dataset 'nosuch'", [], out, remove=["nosuch"])
    refuse("is a training set", [out], tmp_path / "other")
    refuse("is a dataset", [first], months["2014.06"])
    with FileLock(out / ".lock"):
        refuse("another process", [first], out)
    with pytest.raises(DatasetError, match="is a split of training sets only"):
        Dataset.open(first).require_shards("latest")


def test_checkpoints_record_their_datasets_and_held_out_games(
    months: Months, tmp_path: Path
) -> None:
    join_months(months, tmp_path / "named", hold_out="2014.07")
    named = training.describe_data([tmp_path / "named"])
    assert [dataset["name"] for dataset in named["datasets"]] == ["2014.05", "2014.06"]
    assert named["training_sets"][0]["sha256"] == hash_file(tmp_path / "named" / TRAINING_SET_FILE)
    join_months(months, tmp_path / "set")
    on_set = {"data": training.describe_data([tmp_path / "set"])}
    on_all = {"data": training.describe_data(list(months.values()))}
    held_out = [dataset["held_out"] for dataset in on_set["data"]["datasets"]]
    assert held_out == [f"{name}.12" for name in months]
    opened = Dataset.open(tmp_path / "set")
    seen = [find_overlap(on_set, opened, split) for split in ("train", "test", "latest")]
    assert seen == ["yes", "no", "no"]
    tuned = on_set | {"data": on_set["data"] | {"start": on_all}}
    latest = [find_overlap(card, opened, "latest") for card in (on_all, tuned)]
    assert latest == ["yes", "yes"]


def test_datasets_with_different_plane_formats_are_joined(
    made: dict[str, Path], tmp_path: Path
) -> None:
    page = join([made["all"], made["compact"]], tmp_path / "set", JoinConfig(hold_out="none"))
    batches = Batches([tmp_path / "set"], batch_size=40, seed=1)
    assert not batches.packed
    found = count_rows(tmp_path / "set", "train")
    assert found.total() == page["positions"]["train"]
    assert set(found.values()) == {2}, "each row is in both datasets"
    assert len(next(batches.from_step(2))["planes"]) == 40
