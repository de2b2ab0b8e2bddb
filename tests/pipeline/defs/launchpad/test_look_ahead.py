"""What a later asset of a run would refuse is said before the first of them begins."""

from pathlib import Path

import dagster as dg
import pytest

from engine.errors import UserError
from pipeline.defs.jobs import register
from pipeline.defs.launchpad.look_ahead import BLOCKING, forbidden
from pipeline.defs.resources import Datasets
from tests.pipeline.defs.conftest import STEPS, execute, failure

pytestmark = pytest.mark.usefixtures("without_children")


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        (
            {"accuracy_report": {"rule": {"min_ply": -1}}},
            "accuracy_report: min_ply, min_clock and limit must be 0 or more",
        ),
        ({"accuracy_report": {"checkpoint": "nowhere"}}, "accuracy_report: there is no checkpoint called 'nowhere'"),
        ({"check_positions": {"rows": -1}}, "check_positions: rows is -1, and must be from 0 to 1000000"),
        ({"checkpoint": {"train": {"steps": 5}}}, "checkpoint: say how long to train"),
        ({"training_set": {"positions": ["nowhere"]}}, "training_set: there are no positions called nowhere"),
    ],
)
def test_a_mistake_in_a_later_asset_stops_the_first(ops: dict[str, object], words: str, root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("everything", instance, {"checkpoint": STEPS} | ops, "small")
        assert failure(result, "dump").startswith(words)
    assert not (root / "positions").exists()


def test_a_choice_that_is_none_is_refused_at_launch(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        for ops in (
            {"accuracy_report": {"split": "tets"}},
            {"positions": {"ingest": {"order": "shufled"}}},
            {"checkpoint": {"preset": "chesmarro"}},
        ):
            with pytest.raises(dg.DagsterInvalidConfigError, match=r"got (tets|shufled|chesmarro)"):
                execute("everything", instance, {"checkpoint": STEPS} | ops, "small")


def test_what_the_run_itself_makes_need_not_be_there(root: Path) -> None:
    """A run that names what it makes goes on: here to the training, which has too few positions for its batch."""
    ops = {
        "positions": {"workers": 1},
        "check_positions": {"rows": 8},
        "training_set": {"positions": ["small"], "audit": False, "name": "mine"},
        "checkpoint": {
            "training_set": "mine",
            "name": "net",
            "train": {"minutes": 0.0, "steps": 1, "batch_size": 4096},
        },
        "accuracy_report": {"checkpoint": "net", "positions": ["small"]},
    }
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("everything", instance, ops, "small")
        assert "do not fill one batch" in failure(result, "checkpoint")


def test_a_failed_check_forbids_its_own_partition_alone() -> None:
    key, name = dg.AssetKey("positions"), BLOCKING["positions"][0]

    def evaluated(passed: bool, partition: str) -> None:
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, name, passed=passed, partition=partition))

    with dg.DagsterInstance.ephemeral() as instance:
        forbidden(instance, key, "small")
        evaluated(False, "small")
        evaluated(True, "other")
        with pytest.raises(
            UserError, match=f"positions of small failed the check {name} last time: materialise it again"
        ):
            forbidden(instance, key, "small")
        forbidden(instance, key, "other")
        forbidden(instance, dg.AssetKey("training_set"))
