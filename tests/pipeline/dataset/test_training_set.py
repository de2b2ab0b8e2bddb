"""A training set has exactly its datasets' rows, copies none, and holds out the newest games."""

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
from pipeline.dataset.dataset import TRAINING_SET, Dataset
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.columns import SPLITS
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.evaluation.report import find_overlap
from pipeline.storage.stores import file_hash
from pipeline.training import train as training
from tests.pipeline import datasets
from tests.pipeline.months import CONFIG, month

Months = dict[str, Path]
COLUMNS = ("planes", "label", "game", "ply", "elo", "result")


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """Three months of ten days; the last one also holds the first twelve games of the first."""
    folder = tmp_path_factory.mktemp("months")
    return {
        "2014.05": month(folder, "2014.05", list(range(40)), days=10),
        "2014.06": month(folder, "2014.06", list(range(40, 70)), control="180+0", days=10),
        "2014.07": month(folder, "2014.07", list(range(70, 90)) + list(range(12)), days=10),
    }


def joined(months: Months, out: Path, **options: Any) -> dict[str, Any]:
    return join(list(months.values()), out, JoinConfig(**options))


def rows(out: Path, split: str) -> Counter[bytes]:
    """Return the rows of a split as bytes, each as often as it comes."""
    found: Counter[bytes] = Counter()
    for batch in Batches([out], split, batch_size=7, columns=COLUMNS).read_rows():
        found.update(
            b"".join(batch[name][row].tobytes() for name in COLUMNS)
            for row in range(len(batch["label"]))
        )
    return found


def stored(
    paths: list[Path], splits: tuple[str, ...], newest: bool | None = None
) -> Counter[bytes]:
    """Return rows in the same form, read without the code of batches; `newest` selects days."""
    kinds = {"label": "<u2", "game": "<u4", "ply": "<u2", "elo": "<u2", "result": "i1"}
    found: Counter[bytes] = Counter()
    for path in paths:
        dates = [game["date"] for game in datasets.games(path)]
        for row in datasets.table(path).to_pylist():
            if row["split"] in splits and newest in (None, dates[row["game"]] == f"{path.name}.12"):
                numbers = (
                    np.array(row[name], dtype=kind).tobytes() for name, kind in kinds.items()
                )
                found[row["planes"] + b"".join(numbers)] += 1
    return found


def test_the_newest_games_of_each_dataset_stand_apart(months: Months, tmp_path: Path) -> None:
    """Games of all days come in turns, so most shards are of two splits."""
    page = joined(months, tmp_path / "set")
    everything = list(months.values())
    for split in SPLITS:
        assert rows(tmp_path / "set", split) == stored(everything, (split,), newest=False)
    assert rows(tmp_path / "set", "latest") == stored(everything, SPLITS, newest=True)
    assert page["positions"] == {
        split: rows(tmp_path / "set", split).total() for split in page["positions"]
    }
    assert [entry["held_out"] for entry in page["datasets"]] == [f"{name}.12" for name in months]
    assert page["datasets"][0]["why"] == "4 of its 40 games, the newest"
    written = Counter(
        name for table in fen_rows(tmp_path / "set") for name in table["split"].to_pylist()
    )
    assert written == page["positions"]


@pytest.mark.parametrize("planes", ["all", "compact"])
def test_batches_leave_out_what_is_held_out(planes: Any, tmp_path: Path) -> None:
    made = month(
        tmp_path, "2014.05", list(range(20)), days=10, config=replace(CONFIG, planes=planes)
    )
    join([made], tmp_path / "set")
    batches = Batches([tmp_path / "set"], batch_size=16, columns=COLUMNS)
    assert batches.packed == (planes == "compact")
    whole = [
        b"".join(batch[name][row].tobytes() for name in COLUMNS)
        for batch in batches
        for row in range(len(batch["ply"]))
    ]
    assert Counter(whole) == stored([made], ("train",), newest=False)
    later = next(batches.from_step(3))
    labels = [row[77 * 8 :][:2] for row in whole[48:64]]
    assert [label.tobytes() for label in later["label"]] == labels


def test_a_dataset_that_is_named_stands_apart_whole(months: Months, tmp_path: Path) -> None:
    page = joined(months, tmp_path / "set", hold_out="2014.07")
    earlier, latest = list(months.values())[:2], [months["2014.07"]]
    for split in SPLITS:
        assert rows(tmp_path / "set", split) == stored(earlier, (split,))
    assert rows(tmp_path / "set", "latest") == stored(latest, SPLITS)
    assert [entry["held_out"] for entry in page["datasets"]] == ["none", "none", "all"]


@pytest.mark.parametrize(
    ("days", "held_out", "why"),
    [(0, "none", "no dates"), (1, "none", "from one day"), (2, "2014.05.04", "5 of its 10 games")],
)
def test_games_of_few_days_or_none(days: int, held_out: str, why: str, tmp_path: Path) -> None:
    made = month(tmp_path, "2014.05", list(range(10)), days=days)
    page = join([made], tmp_path / "set")
    assert page["datasets"][0]["held_out"] == held_out
    assert why in page["datasets"][0]["why"]
    assert (page["positions"]["latest"] == 0) == (held_out == "none")


def test_the_same_dump_ingested_twice_is_refused(months: Months, tmp_path: Path) -> None:
    again = shutil.copytree(months["2014.05"], tmp_path / "again")
    join([months["2014.05"]], tmp_path / "old")
    for paths, out in (([months["2014.05"], again], "set"), ([again], "old")):
        with pytest.raises(ConfigError, match="have the same manifest"):
            join(paths, tmp_path / out)


def test_a_game_that_train_and_a_test_hold_is_noticed(months: Months, tmp_path: Path) -> None:
    page = joined(months, tmp_path / "set", hold_out="2014.07")
    train = {game["site"] for game in datasets.games(months["2014.05"]) if game["split"] == "train"}
    both = [game for game in datasets.games(months["2014.07"]) if game["site"] in train]
    assert 0 < len(both) < 12
    assert page["games_on_both_sides"]["latest"] == len(both)
    assert page["games_on_both_sides"]["test"] == page["games_on_both_sides"]["val"] == 0
    assert joined(months, tmp_path / "all", hold_out="none")["games_on_both_sides"]["latest"] == 0


def test_joining_copies_nothing_and_appending_a_month_rewrites_none(
    months: Months, tmp_path: Path
) -> None:
    before = {name: datasets.content(path) for name, path in months.items()}
    first, second, third = months.values()
    page = join([first, second], tmp_path / "set")
    again = join([second, first], tmp_path / "set")
    assert again == page
    longer = join([third], tmp_path / "set")
    assert longer["datasets"][:2] == page["datasets"]
    assert [entry["name"] for entry in longer["datasets"]] == list(months)
    assert {path.name for path in (tmp_path / "set").iterdir()} == {TRAINING_SET, ".lock"}
    assert {name: datasets.content(path) for name, path in months.items()} == before


def test_a_dataset_leaves_only_when_it_is_named(months: Months, tmp_path: Path) -> None:
    joined(months, tmp_path / "set")
    assert len(join([months["2014.05"]], tmp_path / "set")["datasets"]) == 3
    page = join([], tmp_path / "set", remove=["2014.06"])
    assert [entry["name"] for entry in page["datasets"]] == ["2014.05", "2014.07"]
    assert months["2014.06"].is_dir()


def test_a_set_and_its_datasets_can_be_moved_together(months: Months, tmp_path: Path) -> None:
    shutil.copytree(months["2014.05"].parent, tmp_path / "here" / "positions")
    join(sorted((tmp_path / "here" / "positions").iterdir()), tmp_path / "here" / "sets" / "all")
    (tmp_path / "here").rename(tmp_path / "there")
    assert rows(tmp_path / "there" / "sets" / "all", "test") == stored(
        list(months.values()), ("test",), newest=False
    )


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
    assert file_hash(copied / "2014.05" / "manifest.json") in {
        entry["manifest_sha256"] for entry in page["datasets"]
    }


def test_mistakes_are_refused_and_leave_nothing(months: Months, tmp_path: Path) -> None:
    out, first = tmp_path / "set", months["2014.05"]

    def refuse(words: str, paths: list[Path], to: Path, hold: str = "newest", **more: Any) -> None:
        with pytest.raises((ConfigError, DatasetError, Stopped), match=words):
            join(paths, to, JoinConfig(hold_out=hold), **more)

    refuse("not a directory", [tmp_path / "nosuch"], out)
    refuse("at least one dataset", [], out)
    refuse("no dataset is called 'x'", [first], out, hold="x")
    refuse("no positions are left to train on", [first], out, hold="2014.05")
    refuse("stopped", [first], out, stop=lambda: True)
    assert not out.exists()
    joined(months, out)
    refuse("hold_out 'newest', not 'none'", [first], out, hold="none")
    refuse("holds no dataset 'nosuch'", [], out, remove=["nosuch"])
    refuse("is a training set", [out], tmp_path / "other")
    refuse("is a dataset", [first], months["2014.06"])
    with FileLock(out / ".lock"):
        refuse("another process", [first], out)
    with pytest.raises(DatasetError, match="is a split of training sets only"):
        Dataset.open(first).require_shards("latest")


def test_a_checkpoint_knows_what_it_was_trained_on_and_what_was_held_out(
    months: Months, tmp_path: Path
) -> None:
    joined(months, tmp_path / "named", hold_out="2014.07")
    named = training.describe_data([tmp_path / "named"])
    assert [dataset["name"] for dataset in named["datasets"]] == ["2014.05", "2014.06"]
    assert named["training_sets"][0]["sha256"] == file_hash(tmp_path / "named" / TRAINING_SET)
    joined(months, tmp_path / "set")
    on_set = {"data": training.describe_data([tmp_path / "set"])}
    on_all = {"data": training.describe_data(list(months.values()))}
    held = [dataset["held_out"] for dataset in on_set["data"]["datasets"]]
    assert held == [f"{name}.12" for name in months]
    opened = Dataset.open(tmp_path / "set")
    seen = [find_overlap(on_set, opened, split) for split in ("train", "test", "latest")]
    assert seen == ["yes", "no", "no"]
    tuned = on_set | {"data": on_set["data"] | {"start": on_all}}
    latest = [find_overlap(card, opened, "latest") for card in (on_all, tuned)]
    assert latest == ["yes", "yes"]


def test_whether_a_split_has_positions_reads_no_dates(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(months, tmp_path / "set")
    monkeypatch.setattr(Dataset, "games", lambda *_: pytest.fail("read the dates"))
    opened = Dataset.open(tmp_path / "set")
    assert [opened.has(split) for split in ("train", "latest", "none")] == [True, True, False]


def test_datasets_of_several_forms_make_one_training_set(
    made: dict[str, Path], tmp_path: Path
) -> None:
    page = join([made["all"], made["compact"]], tmp_path / "set", JoinConfig(hold_out="none"))
    batches = Batches([tmp_path / "set"], batch_size=40, seed=1)
    assert not batches.packed
    found = rows(tmp_path / "set", "train")
    assert found.total() == page["positions"]["train"]
    assert set(found.values()) == {2}, "each row is in both"
    assert len(next(batches.from_step(2))["planes"]) == 40
