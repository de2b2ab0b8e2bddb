"""The assets of tuned networks: errors, metadata, and whole runs on tiny networks."""

import shutil
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from model.card import CARD_FILE
from pipeline.defs import checks
from pipeline.defs.pages.tuned_metadata import describe_strength
from pipeline.defs.resources import Datasets
from pipeline.defs.tuned import imitation, strength_report, tuned_checkpoint
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.finetune.strength import strength
from pipeline.samples.shipped import EMBEDDED
from tests.pipeline.defs.conftest import execute, one, random_pgn

TINY = {
    "generations": 1,
    "games_share": 1.0,
    "workers": 1,
    "explore": {
        "explorer": "hand-written",
        "games": 4,
        "width": 4,
        "most_plies": 30,
        "search": {"algorithm": "gumbel", "simulations": 4, "max_considered_actions": 4},
    },
    "train": {"batch_size": 16, "threads": 1},
    "gate": {
        "games": 2,
        "simulations": 2,
        "seed_games": 2,
        "elo0": -900.0,
        "elo1": -100.0,
        "max_top1_drop": 1.0,
    },
}


@pytest.mark.usefixtures("root")
def test_fine_tuning_without_a_network_is_refused(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("tunings", ["first"])
    for asset, said in (
        (tuned_checkpoint, "no checkpoint has been materialized"),
        (strength_report, "materialize `tuned_checkpoint` of this partition"),
    ):
        assert said in one(asset, instance, {}, "first")


def test_a_fine_tuning_without_a_promotion_plays_no_match(tmp_path: Path) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    for name in ("seed", "best"):
        shutil.copytree(EMBEDDED, tuned / name)
    ask = partial(strength, tuned, out, simulations=(4, 8), games=2, hand_written=0)
    result = ask(engine="", nodes=())
    assert result == {"out": str(out), "rows": [], "text": NOTHING_PROMOTED, "against_seed": None}
    assert not checks.evaluate_strength(result["against_seed"]).passed
    said = describe_strength(out, tuned, result)
    assert said["seed"] == NOTHING_PROMOTED
    assert not {"elo", "elo_low", "elo_high"} & set(said)


HOSTILE = ("../../etc", "a/b", "<script>", "Carlsen, Magnus", ".", "a" * 300, "Zoë", "\x1b[1m")


def test_each_player_has_a_plain_folder(root: Path) -> None:
    folders = [Datasets().imitation(name) for name in (*HOSTILE, "Ann", "ann-1", "Carlsen_ Magnus")]
    assert len(set(folders)) == len(folders)
    assert all(path.parent == root / "checkpoints" and len(path.name) < 90 for path in folders)
    assert folders[-3].name == "imitation-Ann"


@pytest.mark.slow
def test_the_job_fine_tunes_and_measures(
    copied: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an engine would evaluate every move of 200 positions
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
    (network,) = (card.parent for card in copied.glob(f"checkpoints/*/{CARD_FILE}"))
    ops: dict[str, object] = {
        "tuned_checkpoint": {
            "checkpoint": network.name,
            "positions": ["small"],
            "more": {"finetune": TINY},
        },
        "strength_report": {"games": 2, "simulations": [2]},
    }
    instance.add_dynamic_partitions("tunings", ["first"])
    result = execute((tuned_checkpoint, strength_report), instance, ops, "first")
    assert result.success, [it.event_specific_data for it in result.get_step_failure_events()]
    (event,) = result.asset_materializations_for_node("tuned_checkpoint")
    said = {name: value.value for name, value in event.metadata.items()}
    assert said["path"] == str(copied / "tuned" / "first")
    assert '[Result "' in str(said["sample_games"])
    assert len(said["verdicts"].records) == 2  # type: ignore[union-attr]
    (event,) = result.asset_materializations_for_node("strength_report")
    # two games decide, by chance
    promoted = NOTHING_PROMOTED not in str(event.metadata["text"].value)
    assert ("| best 2 | seed 2 |" in str(event.metadata["text"].value)) == promoted
    assert bool({"elo_low", "elo_high"} & set(event.metadata)) == promoted
    again = execute((tuned_checkpoint, strength_report), instance, ops, "first")
    assert again.success
    found = {event.asset_key for event in again.get_asset_materialization_events()}
    assert found == {tuned_checkpoint.key, strength_report.key}


@pytest.mark.slow
def test_a_player_is_imitated_from_the_dumps(root: Path, instance: dg.DagsterInstance) -> None:
    tags = '[White "Carlsen, M"]\n[Black "b"]\n[UTCDate "2024.01.{:02}"]\n'
    games = [tags.format(1 + number // 2) + random_pgn(1, 140 + number) for number in range(40)]
    (root / "dumps" / "small.pgn").write_text("".join(games))
    instance.add_dynamic_partitions("players", ["Carlsen, M", "nobody"])
    said = one(imitation, instance, {}, "nobody")
    assert "the most frequent are 'Carlsen, M' (40), 'b' (40)" in said
    assert one(imitation, instance, {}, "Carlsen, M") == ""
    event = instance.get_latest_materialization_event(imitation.key)
    assert event is not None
    assert event.asset_materialization is not None
    found = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    folder = Datasets().imitation("Carlsen, M")
    assert str(found["headline"]).startswith(("The imitation of", "The games of"))
    assert found["page"] == f"/reports/{folder.name}/report.html"
    assert (root / "reports" / folder.name / "report.html").exists()
    assert found["path"] == str(folder)
