"""What Dagster shows while work goes on: observations with percent and time left, by stage."""

import dagster as dg
import pytest

from engine.progress import Tick
from pipeline.defs import progress


def test_the_time_left_is_a_stages_own_and_its_name_is_shown_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    @dg.asset
    def work(context: dg.AssetExecutionContext) -> None:
        log = progress.log_asset_progress(context)
        for stage, total in (("generation 1: self-play", 20), ("generation 1: gate", 5)):
            for done in range(total + 1):
                log(Tick(done, total, "games", {"generation": 1}, stage))
                clock[0] += 60.0

    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize([work], instance=instance).success
        observed = instance.fetch_observations(work.key, 1000).records
    seen = [
        {name: one.value for name, one in record.asset_observation.metadata.items()}
        for record in observed[::-1]
    ]
    assert seen[0] == {
        "games": 0,
        "generation": 1,
        "stage": "generation 1: self-play",
        "percent": 0.0,
    }
    assert seen[10]["minutes_left"] == pytest.approx(10.0)
    assert (seen[21]["stage"], seen[21]["percent"]) == ("generation 1: gate", 0.0)
    assert seen[22]["minutes_left"] == pytest.approx(4.0), (
        "of the games of this stage, not of the one before"
    )
