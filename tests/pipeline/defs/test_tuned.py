"""The assets of tuned networks: errors, metadata, and whole runs with few games."""

import shutil
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from model.card import CARD_FILE
from pipeline.defs import checks
from pipeline.defs.pages.tuned_metadata import describe_strength
from pipeline.defs.resources import DataFolder
from pipeline.defs.tuned import imitation, strength_report, tuned_checkpoint
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.finetune.strength import measure_strength
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.pipeline.defs.conftest import execute_assets, materialize_alone, random_pgn

SEARCH = {"algorithm": "gumbel", "simulations": 4, "max_considered_actions": 4}
GAMES = {"explorer": "hand-written", "games": 4, "width": 4, "most_plies": 30}
GATE = {"games": 2, "simulations": 2, "seed_games": 2}
LENIENT = {"elo0": -900.0, "elo1": -100.0, "max_top1_drop": 1.0}
SHORT_FINETUNING = {
    **{"generations": 1, "games_share": 1.0, "workers": 1},
    "explore": {**GAMES, "search": SEARCH},
    "train": {"batch_size": 16, "threads": 1},
    "gate": GATE | LENIENT,
}


@pytest.mark.usefixtures("data_folder")
def test_fine_tuning_without_a_checkpoint_is_refused(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("tunings", ["first"])
    for asset, problem in (
        (tuned_checkpoint, "no checkpoint has been materialized"),
        (strength_report, "materialize `tuned_checkpoint` of this partition"),
    ):
        assert problem in materialize_alone(asset, instance, {}, "first")


def test_a_fine_tuning_without_a_promotion_plays_no_match(tmp_path: Path) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    for name in ("seed", "best"):
        shutil.copytree(EMBEDDED_CHECKPOINT, tuned / name)
    measure = partial(measure_strength, tuned, out, simulations=(4, 8), games=2, hand_written=0)
    result = measure(engine="", nodes=())
    assert result == {"out": str(out), "rows": [], "text": NOTHING_PROMOTED, "against_seed": None}
    assert not checks.evaluate_strength(result["against_seed"]).passed
    metadata = describe_strength(out, tuned, result)
    assert metadata["result"] == NOTHING_PROMOTED
    assert not {"elo", "elo_low", "elo_high"} & set(metadata)


HOSTILE_NAMES = (
    "../../etc",
    "a/b",
    "<script>",
    "Carlsen, Magnus",
    ".",
    "a" * 300,
    "Zoë",
    "\x1b[1m",
)


def test_each_player_has_a_folder_with_a_plain_name(data_folder: Path) -> None:
    folders = [
        DataFolder().imitation_folder(name)
        for name in (*HOSTILE_NAMES, "Ann", "ann-1", "Carlsen_ Magnus")
    ]
    assert len(set(folders)) == len(folders)
    assert all(
        path.parent == data_folder / "checkpoints" and len(path.name) < 90 for path in folders
    )
    assert folders[-3].name == "imitation-Ann"


@pytest.mark.slow
def test_a_fine_tuning_is_measured_and_can_be_materialized_again(
    filled_folder: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without an engine, which would evaluate every move of 200 positions
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
    (network,) = (card.parent for card in filled_folder.glob(f"checkpoints/*/{CARD_FILE}"))
    ops: dict[str, object] = {
        "tuned_checkpoint": {
            "checkpoint": network.name,
            "positions": ["small"],
            "more": {"finetune": SHORT_FINETUNING},
        },
        "strength_report": {"games": 2, "simulations": [2]},
    }
    instance.add_dynamic_partitions("tunings", ["first"])
    result = execute_assets((tuned_checkpoint, strength_report), instance, ops, "first")
    assert result.success, [it.event_specific_data for it in result.get_step_failure_events()]
    (event,) = result.asset_materializations_for_node("tuned_checkpoint")
    metadata = {name: value.value for name, value in event.metadata.items()}
    assert metadata["path"] == str(filled_folder / "tuned" / "first")
    assert '[Result "' in str(metadata["sample_games"])
    assert len(metadata["verdicts"].records) == 2  # type: ignore[union-attr]
    (event,) = result.asset_materializations_for_node("strength_report")
    # the result of two games is random
    promoted = NOTHING_PROMOTED not in str(event.metadata["text"].value)
    assert ("| best 2 | seed 2 |" in str(event.metadata["text"].value)) == promoted
    assert bool({"elo_low", "elo_high"} & set(event.metadata)) == promoted
    again = execute_assets((tuned_checkpoint, strength_report), instance, ops, "first")
    assert again.success
    keys = {event.asset_key for event in again.get_asset_materialization_events()}
    assert keys == {tuned_checkpoint.key, strength_report.key}


@pytest.mark.slow
def test_a_player_is_imitated_from_the_dumps(
    data_folder: Path, instance: dg.DagsterInstance
) -> None:
    tags = '[White "Carlsen, M"]\n[Black "b"]\n[UTCDate "2024.01.{:02}"]\n'
    games = [tags.format(1 + number // 2) + random_pgn(1, 140 + number) for number in range(40)]
    (data_folder / "dumps" / "small.pgn").write_text("".join(games))
    instance.add_dynamic_partitions("players", ["Carlsen, M", "nobody"])
    error = materialize_alone(imitation, instance, {}, "nobody")
    assert "the most frequent are 'Carlsen, M' (40), 'b' (40)" in error
    assert materialize_alone(imitation, instance, {}, "Carlsen, M") == ""
    event = instance.get_latest_materialization_event(imitation.key)
    assert event is not None
    assert event.asset_materialization is not None
    metadata = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    folder = DataFolder().imitation_folder("Carlsen, M")
    assert str(metadata["headline"]).startswith(("The imitation of", "The games of"))
    assert metadata["page"] == f"/reports/{folder.name}/report.html"
    assert (data_folder / "reports" / folder.name / "report.html").exists()
    assert metadata["path"] == str(folder)
