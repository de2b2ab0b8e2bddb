"""The self-play assets: their checks on figures, and a whole run of their job on a tiny network."""

import shutil
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from pipeline.definitions import defs
from pipeline.defs import checks
from pipeline.defs.assets import dump
from pipeline.defs.jobs import register
from pipeline.defs.pages.tuned_metadata import describe_strength
from pipeline.defs.resources import Compute, Datasets
from pipeline.defs.tuned import strength_report, tuned_checkpoint
from pipeline.finetune import strength
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.matches.config import SideConfig
from tests.pipeline.defs.conftest import execute, failure
from tests.pipeline.finetune.fakes import network

RESULT = {"seed_eval": {"top1": 0.45}, "eval": {"top1": 0.44}, "against_seed": {"games": 100, "score": 0.6}}
PROBE = {"loss": 2.0, "rows": 10}
TINY = {
    "generations": 1,
    "workers": 1,
    "force": True,  # four steps teach no engine anything
    "explore": {
        "explorer": "hand-written",
        "games": 4,
        "width": 4,
        "most_plies": 30,
        "full_share": 1.0,
        "quick_simulations": 2,
        "val_share": 0.0,
    },
    "train": {"batch_size": 16, "threads": 1},
    "gate": {
        "games": 2,
        "simulations": 2,
        "seed_games": 2,
        "sprt": {"elo0": -900.0, "elo1": -100.0, "alpha": 0.4, "beta": 0.4},
    },
    "eval": {"positions": 50, "games": 0, "max_top1_drop": 1.0},
}
TINY["explore"] |= {"search": {"algorithm": "gumbel", "simulations": 4, "max_considered_actions": 4}}  # type: ignore[operator]


def passed(results: list[dg.AssetCheckResult]) -> dict[str | None, bool]:
    return {result.check_name: result.passed for result in results}


@pytest.mark.parametrize(
    ("changed", "not_worse", "remembers"),
    [
        ({}, True, True),
        ({"against_seed": {"games": 100, "score": 0.49}}, False, True),
        ({"eval": {"top1": 0.43}}, True, False),
        ({"against_seed": None}, True, True),
        ({"eval": {}, "seed_eval": {}}, True, True),
    ],
)
def test_a_tuned_network_is_warned_of_by_its_own_figures(
    changed: dict[str, object], not_worse: bool, remembers: bool
) -> None:
    found = passed(checks.judge_tuned(RESULT | changed, 0.015, PROBE))
    assert found == {checks.LOSS: True, checks.NOT_WORSE: not_worse, checks.REMEMBERS: remembers}


def test_a_tuned_network_is_stronger_when_its_whole_interval_says_so() -> None:
    row = {"elo": 60.0, "elo_low": 5.0, "elo_high": 120.0, "games": 200}
    assert passed(checks.judge_strength(row)) == {checks.STRONGER: True}
    assert passed(checks.judge_strength(row | {"elo_low": -1.0})) == {checks.STRONGER: False}


def test_a_run_that_makes_other_assets_leaves_those_of_self_play_out(root: Path) -> None:
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    own = [tuned_checkpoint, strength_report]
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = (
            defs()
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                silent,
                instance=instance,
                partition_key="small",
                asset_selection=[asset.key for asset in (dump, *own)],
            )
        )
        assert result.success
        assert [event.asset_key for event in result.get_asset_materialization_events()] == [dump.key]
        assert not result.get_asset_check_evaluations()
        resources = {"datasets": Datasets(), "compute": Compute()}
        backfill = {"dagster/backfill": "some"}
        result = dg.materialize(own, instance=instance, resources=resources, tags=backfill, run_config=silent)
        assert result.success
        assert not result.get_asset_materialization_events()
        assert "no checkpoint has been materialized" in failure(execute("finetune", instance, {}), own[0].key.path[0])
        for asset in own:
            chosen = dg.materialize(
                [asset], instance=instance, resources=resources, run_config=silent, raise_on_error=False
            )
            assert "has been materialized: materialize one" in failure(chosen, asset.key.path[0])
    assert not (root / "tuned").exists()


def test_nothing_promoted_is_said_and_the_seed_does_not_play_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    network(tuned / "seed", 0)
    shutil.copytree(tuned / "seed", tuned / "best")
    ask = partial(strength.strength, tuned, out, games=2, engine="", nodes=())
    result = ask(simulations=(4, 8), hand_written=0)
    assert result == {"out": str(out), "rows": [], "text": NOTHING_PROMOTED, "against_seed": None, "judge": None}
    assert "No generation was promoted" in (out / "report.html").read_text()
    assert passed(checks.judge_strength(result["against_seed"])) == {checks.STRONGER: False}
    said = describe_strength(out, tuned, result)
    assert said["seed"] == NOTHING_PROMOTED
    assert not {"elo", "elo_low", "elo_high"} & set(said)
    met: list[list[str]] = []

    def play(pairings: list[tuple[SideConfig, SideConfig]], *rest: object, **more: object) -> dict[str, object]:
        met.append([side.who for _, side in pairings])
        return {"rows": [{"b": met[-1][0]}], "text": "a table", "out": str(out)}

    monkeypatch.setattr(strength, "play_matches", play)
    monkeypatch.setattr(strength, "write_strength_page", lambda *words: None)
    assert ask(simulations=(4,), hand_written=4)["text"] == f"{NOTHING_PROMOTED}\n\na table"
    shutil.rmtree(tuned / "best")
    network(tuned / "best", 1)
    assert ask(simulations=(4,), hand_written=4)["against_seed"] == {"b": str(tuned / "seed")}
    assert met == [["hand-written"], [str(tuned / "seed"), "hand-written"]]


@pytest.mark.slow
def test_the_job_fine_tunes_and_measures(copied: Path) -> None:
    (network,) = (card.parent for card in copied.glob("checkpoints/*/checkpoint.json"))  # a lock lies there too
    ops: dict[str, object] = {
        "tuned_checkpoint": {"checkpoint": network.name, "name": "first", "finetune": TINY},
        "strength_report": {"games": 2, "simulations": [2], "hand_written": 2, "nodes": [], "judged": 0},
    }
    with dg.DagsterInstance.ephemeral() as instance:
        result = execute("finetune", instance, ops)
        assert result.success, [event.event_specific_data for event in result.get_step_failure_events()]
        (event,) = result.asset_materializations_for_node("tuned_checkpoint")
        said = {name: value.value for name, value in event.metadata.items()}
        assert said["path"] == str(copied / "tuned" / "first")
        assert "data:image/png;base64" in str(said["curves"])
        assert "data:image/svg+xml;base64" in str(said["sample_games"])
        assert '[Result "' in str(said["sample_games"])
        assert len(said["verdicts"].records) == 2  # type: ignore[attr-defined]
        (event,) = result.asset_materializations_for_node("strength_report")
        assert "| best 2 | seed 2 |" in str(event.metadata["text"].value)
        assert event.metadata["elo_low"].value <= event.metadata["elo"].value  # type: ignore[operator]
        again = execute("finetune", instance, ops)
        assert again.success
        found = {event.asset_key for event in again.get_asset_materialization_events()}
        assert found == {tuned_checkpoint.key, strength_report.key}
