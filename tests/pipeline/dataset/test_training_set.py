"""A training set gives the rows of its datasets and no others, copies none, and keeps the newest
games apart."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from model.training.config import TrainConfig
from pipeline.dataset import dataset
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import TRAINING_SET, Dataset, read_training_set
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.shards import SPLITS, file_hash
from pipeline.dataset.join import JoinConfig, join
from pipeline.errors import ConfigError, DatasetError, Stopped
from pipeline.evaluation.report import _seen
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
    """Give the rows of a split as bytes, each as often as it comes."""
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
    """Give the rows of datasets in the same form, read without the code that batches use: of the
    last day, or without it."""
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
    later = next(iter(batches.from_step(3)))
    assert [later["label"][row].tobytes() for row in range(16)] == [
        row[77 * 8 :][:2] for row in whole[48:64]
    ]


def test_a_dataset_that_is_named_stands_apart_whole(months: Months, tmp_path: Path) -> None:
    page = joined(months, tmp_path / "set", hold_out="2014.07")
    earlier, latest = list(months.values())[:2], [months["2014.07"]]
    for split in SPLITS:
        assert rows(tmp_path / "set", split) == stored(earlier, (split,))
    assert rows(tmp_path / "set", "latest") == stored(latest, SPLITS)
    assert [entry["held_out"] for entry in page["datasets"]] == ["none", "none", "all"]


@pytest.mark.parametrize(
    ("days", "held_out", "why"),
    [
        (0, "none", "its games have no dates: only its val and test splits are held out"),
        (
            1,
            "none",
            "most of its games are of one day, 2014.05.03: only its val and test splits are held "
            "out",
        ),
        (2, "2014.05.04", "5 of its 10 games, the newest"),
    ],
)
def test_games_of_few_days_or_none(days: int, held_out: str, why: str, tmp_path: Path) -> None:
    made = month(tmp_path, "2014.05", list(range(10)), days=days)
    page = join([made], tmp_path / "set")
    assert [(entry["held_out"], entry["why"]) for entry in page["datasets"]] == [(held_out, why)]
    assert (page["positions"]["latest"] == 0) == (held_out == "none")


def test_the_same_dump_ingested_twice_is_refused(months: Months, tmp_path: Path) -> None:
    again = shutil.copytree(months["2014.05"], tmp_path / "again")
    refusal = (
        f"{re.escape(str(months['2014.05']))} and {re.escape(str(again))} have the same manifest"
    )
    with pytest.raises(ConfigError, match=refusal):
        join([months["2014.05"], again], tmp_path / "set")
    join([months["2014.05"]], tmp_path / "set")
    with pytest.raises(ConfigError, match=refusal):
        join([again], tmp_path / "set")


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
    with pytest.raises(ConfigError, match="holds no dataset 'nosuch'"):
        join([], tmp_path / "set", remove=["nosuch"])
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
    with pytest.raises(DatasetError, match="joined with hold_out 'newest', not 'none'"):
        joined(months, out, hold_out="none")
    with pytest.raises(DatasetError, match="is a training set"):
        join([out], tmp_path / "other")
    with pytest.raises(DatasetError, match="is a dataset"):
        join([months["2014.05"]], months["2014.06"])
    with FileLock(out / ".lock"), pytest.raises(DatasetError, match="another process"):
        joined(months, out)
    with pytest.raises(DatasetError, match="is a split of training sets only"):
        Dataset.open(months["2014.05"]).require_shards("latest")


def test_a_checkpoints_card_names_what_was_trained_on_and_not_what_was_held_out(
    months: Months, tmp_path: Path
) -> None:
    joined(months, tmp_path / "set", hold_out="2014.07")
    data = training.describe_data([tmp_path / "set"])
    assert [dataset["name"] for dataset in data["datasets"]] == ["2014.05", "2014.06"]
    assert data["training_sets"][0]["sha256"] == file_hash(tmp_path / "set" / TRAINING_SET)
    assert "training_sets" not in training.describe_data([months["2014.05"]])
    assert read_training_set(tmp_path / "set")["positions"] == data["training_sets"][0]["positions"]


def test_a_report_knows_that_the_newest_games_were_held_out(months: Months, tmp_path: Path) -> None:
    joined(months, tmp_path / "set")
    on_set, on_all = (
        {"data": training.describe_data(paths)}
        for paths in ([tmp_path / "set"], list(months.values()))
    )
    assert [dataset["held_out"] for dataset in on_set["data"]["datasets"]] == [
        f"{name}.12" for name in months
    ]
    opened = Dataset.open(tmp_path / "set")
    assert [_seen(on_set, opened, split) for split in ("train", "test", "latest")] == [
        "yes",
        "no",
        "no",
    ]
    assert _seen(on_all, opened, "latest") == "yes"
    tuned = on_set | {"data": on_set["data"] | {"start": on_all}}
    assert _seen(tuned, opened, "latest") == "yes"


def test_a_training_reads_each_manifest_once(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(months, tmp_path / "set")
    read: list[str] = []
    real = dataset.read_manifest

    def counted(path: Path) -> dict[str, Any]:
        read.append(path.resolve().name)
        return real(path)

    def train(*given: Any, validation: Any, check_output: Any, **_: Any) -> dict[str, Any]:
        next(given[2](0))
        assert validation is not None
        check_output()
        return {}

    monkeypatch.setattr(dataset, "read_manifest", counted)
    monkeypatch.setattr("model.training.loop.train", train)
    config = TrainConfig(steps=1, batch_size=16)
    training.train_on([tmp_path / "set"], "fianchetto-xs", config, tmp_path / "net")
    assert sorted(read) == sorted(months)


def test_whether_a_split_has_positions_reads_no_dates(
    months: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(months, tmp_path / "set")
    monkeypatch.setattr(Dataset, "games", lambda *_: pytest.fail("read the dates"))
    opened = Dataset.open(tmp_path / "set")
    assert [opened.has(split) for split in ("train", "latest", "none")] == [True, True, False]
