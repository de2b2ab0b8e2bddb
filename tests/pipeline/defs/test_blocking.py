"""What a launch refuses, and what a failed blocking check forbids later runs."""

from pathlib import Path

import dagster as dg
import pytest

from engine.errors import UserError
from pipeline.defs.blocking import BLOCKING, require_no_failed_check
from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets
from tests.pipeline.defs.conftest import STEPS, execute

pytestmark = pytest.mark.usefixtures("without_children")


def test_a_choice_that_is_none_is_refused_at_launch(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        for ops in (
            {"accuracy_report": {"split": "tets"}},
            {"positions": {"ingest": {"planes": "compat"}}},
            {"checkpoint": {"preset": "chesmarro"}},
        ):
            with pytest.raises(dg.DagsterInvalidConfigError, match=r"got (tets|compat|chesmarro)"):
                execute("everything", instance, {"checkpoint": STEPS} | ops, "small")


def test_a_failed_check_forbids_its_own_partition_alone() -> None:
    key, name = dg.AssetKey("positions"), BLOCKING["positions"][0]

    def evaluated(passed: bool, partition: str) -> None:
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(key, name, passed=passed, partition=partition)
        )

    with dg.DagsterInstance.ephemeral() as instance:
        require_no_failed_check(instance, key, ["small"])
        evaluated(False, "small")
        evaluated(True, "other")
        with pytest.raises(
            UserError,
            match=f"positions of small failed the check {name} last time: materialize it again",
        ):
            require_no_failed_check(instance, key, ["small"])
        require_no_failed_check(instance, key, ["other"])
        require_no_failed_check(instance, dg.AssetKey("training_set"))
