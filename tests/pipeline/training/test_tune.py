"""Fine-tuning on self-play rows: their uses, what the network learns, stopped and resumed runs."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.encoding.planes import legal_mask
from engine.encoding.views import NO_LAST_MOVE
from engine.progress import never, silent
from model.checkpoint import load, read_card
from model.inference.evaluator import NetworkEvaluator
from model.network.presets import preset
from model.training.config import TrainConfig
from model.training.loop import train
from model.training.save import TrainingMismatchError
from model.training.targets import load_training_rows
from pipeline.dataset.batches import Batches
from pipeline.dataset.files import shards
from pipeline.dataset.files.shards import Batch
from pipeline.dataset.mixture import Mixture
from pipeline.errors import DatasetError
from pipeline.training.train import count_positions, list_datasets, select_columns
from pipeline.training.tune import add_uses, tune_on
from tests.model.synthetic import TINY, stream
from tests.pipeline.searched import dataset, on_the_last_move, playouts

pytestmark = pytest.mark.usefixtures("poll_stop_before_steps_only")

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    epochs=1.0,
    batch_size=16,
    threads=1,
    amp="off",
    device="cpu",
    learning_rate=1e-3,
    ema=0.5,
    teach="both",
    search_value_share=0.5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two checkpoints, human rows with some held out, and two generations of self-play."""
    folder = tmp_path_factory.mktemp("tuning")
    options: Any = {"validation": None, "data": {}, "progress": silent, "stop": never}
    for name, seed in (("start", 1), ("other", 2)):
        config = replace(CONFIG, epochs=None, steps=20, teach="policy", search_value_share=1.0)
        train(replace(config, seed=seed), TINY, stream(), folder / name, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "ROW_GROUP", 16)
        dataset(folder / "human", playouts(130, 1), held_out=30)
        dataset(folder / "one", playouts(150, 2), on_the_last_move, lambda row: row % 3 / 2 - 0.5)
        dataset(folder / "two", playouts(90, 3), on_the_last_move, lambda row: row % 3 / 2 - 0.5)
    return folder


def tune(folder: Path, out: Path, config: TrainConfig = CONFIG, **options: Any) -> dict[str, Any]:
    calls, stop_after = itertools.count(), options.pop("stop_after", 10**9)
    selfplay = [folder / name for name in options.pop("selfplay", ("one", "two"))]
    human = [folder / name for name in options.pop("human", ("human",))]
    start = options.pop("start", folder / "start")
    options = {"human_share": 1 / 3, "most_uses": 1.0, "spent": {}, **options}
    return tune_on(
        selfplay, human, start, config, out, stop=lambda: next(calls) >= stop_after, **options
    )


def weights_hash(card: dict[str, Any]) -> str:
    return str(card["files"]["weights"]["sha256"])


def test_a_run_uses_its_rows_once_and_records_its_data(folder: Path, tmp_path: Path) -> None:
    card = tune(folder, tmp_path / "net")
    assert card["step"] == card["config"]["steps"] == 22  # a batch takes 10 2/3 of 240 rows
    assert card["finished"]
    people, one, two = card["uses"]
    assert (people["names"], one["names"], two["names"]) == (["human"], ["one"], ["two"])
    assert (people["rows"], one["rows"], two["rows"]) == (100, 150, 90)
    assert people["drawn"] == 22 * 16 // 3
    assert one["drawn"] + two["drawn"] == 22 * 16 - people["drawn"] == 235
    assert (one["drawn"], two["drawn"]) == (147, 88), "235 divided as 150 to 90"
    assert one["uses"] == 147 / 150
    assert "validation_top1" in card["metrics"]
    assert card["data"]["start"]["weights_sha256"] == weights_hash(read_card(folder / "start"))
    assert [entry["name"] for entry in list_datasets(card["data"])] == ["human", "one", "two"]
    before = read_card(folder / "start")["positions"]
    assert (card["positions"], count_positions(card)) == (22 * 16, 22 * 16 + before)
    later = tune(folder, tmp_path / "later", start=tmp_path / "net")
    assert count_positions(later) == 2 * 22 * 16 + before
    assert "start" not in later["data"]["start"]["data"], "generations do not nest"
    repeated = tune(folder, tmp_path / "net")
    assert "finished already" in repeated["message"]
    assert repeated["uses"] == card["uses"]


def test_spent_rows_are_not_used_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real = [], Mixture.from_step

    def record_games(self: Mixture, step: int) -> Iterator[Batch]:
        for rows in real(self, step):
            seen.append(rows["game"])
            yield rows

    monkeypatch.setattr(Mixture, "from_step", record_games)
    first = tune(folder, tmp_path / "first", selfplay=("one",))
    second = tune(folder, tmp_path / "second", spent=add_uses(first, {}))
    spent = add_uses(second, add_uses(first, {}))
    assert [use["drawn"] for use in first["uses"]] == [74, 150]
    assert [use["drawn"] for use in second["uses"]] == [42, 0, 86]
    rows = np.concatenate(seen)
    searched, people = rows[rows >= 200_000], rows[rows < 200_000]
    assert len(np.unique(searched)) == len(searched) == 236, "no row is used twice"
    assert len(people) == 116
    assert len(np.unique(people)) == 100, "every human row is used before one is used again"
    message = r"4 of 240 self-play positions may still be used.* increase most_uses"
    with pytest.raises(DatasetError, match=message):
        tune(folder, tmp_path / "third", spent=spent)
    third = tune(folder, tmp_path / "third", spent=spent, most_uses=2.0, stop_after=1)
    assert third["config"]["steps"] == 22


def test_steps_are_limited_by_uses_and_by_epochs(folder: Path, tmp_path: Path) -> None:
    assert tune(folder, tmp_path / "few", replace(CONFIG, epochs=0.2))["step"] == 5
    long = replace(CONFIG, epochs=50.0)
    many = tune(folder, tmp_path / "many", long, most_uses=0.5)
    assert many["step"] == 11
    assert all(use["uses"] <= 0.5 for use in many["uses"][1:])
    alone = tune(folder, tmp_path / "alone", long, human=())
    assert alone["step"] == 15
    assert [use["names"] for use in alone["uses"]] == [["one"], ["two"]]


def test_the_policy_is_kept_where_searches_teach_only_the_value(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes less than half as much as without the start's policy as its target."""
    config = replace(CONFIG, epochs=6.0, learning_rate=0.03, teach="value", search_value_share=1.0)
    options: dict[str, Any] = {"selfplay": ("two",), "most_uses": 20.0, "human_share": 0.1}
    tune(folder, tmp_path / "whole", config, **options)
    tune(folder, tmp_path / "stopped", config, stop_after=9, **options)
    assert not read_card(tmp_path / "stopped")["finished"]
    card = tune(folder, tmp_path / "stopped", config, **options)
    assert weights_hash(card) == weights_hash(read_card(tmp_path / "whole"))
    tune(folder, tmp_path / "people", replace(config, keep_policy=False), **options)
    monkeypatch.setattr("model.training.save.set_reference", lambda run, weights: None)
    tune(folder, tmp_path / "free", config, **options)
    rows = next(
        Batches([folder / "two"], batch_size=90, columns=select_columns(config, TINY)).from_step(0)
    )
    start = compute_priors(folder / "start", rows)
    whole, free, people = (
        compute_priors(tmp_path / name, rows) for name in ("whole", "free", "people")
    )
    assert 0.0 < np.abs(whole - start).sum() < 0.5 * np.abs(free - start).sum()
    losses = [-np.log(priors[np.arange(90), rows["label"]]).mean() for priors in (people, start)]
    assert losses[0] < 0.7 * losses[1], "without keep_policy, the policy learns human moves"


def test_ratings_and_last_moves_are_hidden_in_rows_with_visits(folder: Path) -> None:
    """Searches do not read these columns. If only the value learns from them, they are kept."""
    human, names = preset("fianchetto-human"), ("elo", "opponent_elo", "last_move")
    batches = Batches([folder / "two"], batch_size=90, columns=select_columns(CONFIG, human))
    rows = dict(next(batches.from_step(0)))
    rows |= {name: np.full(90, 1500, rows[name].dtype) for name in names}
    rows["visits"][0] = None  # not searched
    for teach, known in (("both", 1), ("value", 90)):
        columns = load_training_rows(replace(CONFIG, teach=teach), human, rows, CPU)  # type: ignore[arg-type]
        for name, unknown in zip(names, (0, 0, NO_LAST_MOVE), strict=True):
            assert columns[name].tolist() == [1500] * known + [unknown] * (90 - known)


def compute_priors(checkpoint: Path, rows: Batch) -> np.ndarray:
    """Return a network's move probabilities, zero for illegal moves."""
    logits, _ = NetworkEvaluator(load(checkpoint)[0], device="cpu", amp="off")(rows["planes"])
    logits = np.where(legal_mask(rows["planes"]), logits.astype(np.float64), -np.inf)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_impossible_runs_are_refused_before_anything_is_written(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=r"one batch takes 666\.667"):
        tune(folder, tmp_path / "net", replace(CONFIG, batch_size=1000))
    with pytest.raises(DatasetError, match="nowhere is not a directory"):
        tune(folder, tmp_path / "net", selfplay=("nowhere",))
    assert not (tmp_path / "net").exists()


def test_a_resumed_run_equals_an_uninterrupted_one_and_other_inputs_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    whole = tune(folder, tmp_path / "whole")
    stopped = tune(folder, tmp_path / "stopped", stop_after=7)
    assert stopped["step"] == 7
    assert sum(use["drawn"] for use in stopped["uses"]) == 7 * 16
    others: list[tuple[dict[str, Any], str]] = [
        ({"start": folder / "other"}, "the data differ"),
        ({"human_share": 0.25}, "the data differ"),
        ({"selfplay": ("one",)}, "the data differ"),
        ({"config": replace(CONFIG, ema=0.2)}, "ema was 0.5, is 0.2"),
    ]
    for options, message in others:
        with pytest.raises(TrainingMismatchError, match=message):
            tune(folder, tmp_path / "stopped", options.pop("config", CONFIG), **options)
    assert weights_hash(tune(folder, tmp_path / "stopped")) == weights_hash(whole)
