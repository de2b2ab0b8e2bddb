"""The self-play assets: their checks on figures, and a whole run of their job on a tiny network."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pipeline.dataset.files.shards import publish_json
from pipeline.defs import checks
from pipeline.defs.pages.tuned_metadata import describe_strength
from pipeline.defs.tuned import strength_report, tuned_checkpoint
from pipeline.finetune import strength
from pipeline.finetune.state import GENERATIONS, NOTHING_PROMOTED
from pipeline.finetune.teacher import TEACHER
from pipeline.matches.config import SideConfig
from tests.pipeline.defs.conftest import execute, one
from tests.pipeline.finetune.fakes import network

TINY = {
    "generations": 1,
    "games_share": 1.0,
    "workers": 1,
    "explore": {
        "explorer": "hand-written",
        "games": 4,
        "width": 4,
        "most_plies": 30,
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
TINY["explore"] |= {
    "search": {"algorithm": "gumbel", "simulations": 4, "max_considered_actions": 4}
}  # type: ignore[operator]


def test_a_tuned_network_is_stronger_when_its_whole_interval_says_so() -> None:
    row = {"score": 0.58, "elo": 60.0, "elo_low": 5.0, "elo_high": 120.0, "games": 200}
    assert checks.evaluate_strength(row).passed
    assert not checks.evaluate_strength(row | {"elo_low": -1.0}).passed
    assert checks.evaluate_strength(row | {"elo": None, "elo_high": None}).passed
    lost = checks.evaluate_strength(row | {"elo": None, "elo_low": None})
    assert (lost.passed, lost.description) == (False, "Elo below +120 in 200 games")


@pytest.mark.usefixtures("root")
def test_self_play_without_a_network_says_so() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tunings", ["first"])
        said = one(tuned_checkpoint, instance, {}, "first")
        assert "no checkpoint has been materialized" in said
        said = one(strength_report, instance, {}, "first")
        assert "materialize `tuned_checkpoint` of this partition" in said


def test_nothing_promoted_is_said_and_the_seed_does_not_play_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    network(tuned / "seed", 0)
    shutil.copytree(tuned / "seed", tuned / "best")
    ask = partial(strength.strength, tuned, out, games=2, engine="", nodes=())
    result = ask(simulations=(4, 8), hand_written=0)
    assert result == {"out": str(out), "rows": [], "text": NOTHING_PROMOTED, "against_seed": None}
    assert not checks.evaluate_strength(result["against_seed"]).passed
    said = describe_strength(out, tuned, result)
    assert said["seed"] == NOTHING_PROMOTED
    assert not {"elo", "elo_low", "elo_high"} & set(said)
    met: list[list[str]] = []

    def play(
        pairings: list[tuple[SideConfig, SideConfig]], *rest: object, **more: object
    ) -> dict[str, object]:
        met.append([side.who for _, side in pairings])
        return {"rows": [{"b": met[-1][0]}], "text": "a table", "out": str(out)}

    monkeypatch.setattr(strength, "play_matches", play)
    assert ask(simulations=(4,), hand_written=4)["text"] == f"{NOTHING_PROMOTED}\n\na table"
    shutil.rmtree(tuned / "best")
    network(tuned / "best", 1)
    assert ask(simulations=(4,), hand_written=4)["against_seed"] == {"b": str(tuned / "seed")}
    assert met == [["hand-written"], [str(tuned / "seed"), "hand-written"]]


def test_a_clean_sweep_has_a_bound_and_no_elo(tmp_path: Path) -> None:
    row = dict.fromkeys(("a", "b"), "x") | {
        "games": 4,
        "wins": 4,
        "draws": 0,
        "losses": 0,
        "score": 1.0,
        "los": 0.99,
    }
    row |= {"elo": None, "elo_low": 160.6, "elo_high": None}
    said = describe_strength(tmp_path, tmp_path, {"against_seed": row, "rows": [row], "text": ""})
    assert said["elo_low"] == 160.6
    assert not {"elo", "elo_high"} & set(said)
    assert said["matches"].records[0].data["Elo (95 %)"] == "above +161"


def test_the_last_comparison_of_players_is_shown(tmp_path: Path) -> None:
    found: dict[str, Any] = {
        "format_version": 2,
        "truth": "results",
        "games": 63,
        "network": 0.2,
        "hand_written": 0.1,
    }
    for number, count in enumerate((399, 400)):
        folder = tmp_path / GENERATIONS / f"00{number}"
        folder.mkdir(parents=True)
        publish_json(folder, TEACHER, found | {"positions": count, "low": -0.12, "high": -0.08})
    nothing = {"against_seed": None, "rows": [], "text": ""}
    words = str(describe_strength(tmp_path, tmp_path, nothing)["teacher"].value)
    assert "400 held-out positions of 63 games" in words
    assert "hand-written player teaches" in words
    assert "teacher" not in describe_strength(tmp_path, tmp_path / "none", nothing)


@pytest.mark.slow
def test_the_job_fine_tunes_and_measures(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an engine would evaluate every move of 200 positions
    monkeypatch.setenv("FIANCHETTO_UCI_ENGINE", "")
    # a lock lies there too
    (network,) = (card.parent for card in copied.glob("checkpoints/*/checkpoint.json"))
    ops: dict[str, object] = {
        "tuned_checkpoint": {"checkpoint": network.name, "finetune": TINY},
        "strength_report": {"games": 2, "simulations": [2]},
    }
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tunings", ["first"])
        result = execute("finetune", instance, ops, "first")
        assert result.success, [
            event.event_specific_data for event in result.get_step_failure_events()
        ]
        (event,) = result.asset_materializations_for_node("tuned_checkpoint")
        said = {name: value.value for name, value in event.metadata.items()}
        assert said["path"] == str(copied / "tuned" / "first")
        assert "(/reports/pictures/" in str(said["curves"])
        assert '[Result "' in str(said["sample_games"])
        assert len(said["verdicts"].records) == 2  # type: ignore[attr-defined]
        (event,) = result.asset_materializations_for_node("strength_report")
        # two games decide, by chance
        promoted = NOTHING_PROMOTED not in str(event.metadata["text"].value)
        assert ("| best 2 | seed 2 |" in str(event.metadata["text"].value)) == promoted
        assert bool({"elo_low", "elo_high"} & set(event.metadata)) == promoted, (
            "a clean sweep has a bound alone"
        )
        again = execute("finetune", instance, ops, "first")
        assert again.success
        found = {event.asset_key for event in again.get_asset_materialization_events()}
        assert found == {tuned_checkpoint.key, strength_report.key}
