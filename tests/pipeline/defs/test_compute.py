"""The assets take the engine as a resource, one setting for the whole instance."""

from pathlib import Path

import dagster as dg
import pytest

from pipeline.defs.jobs import register
from pipeline.defs.resources import Compute, Datasets
from pipeline.defs.tuned import tuned_checkpoint
from tests.model.test_checkpoint import make
from tests.pipeline.defs.conftest import execute, failure, one

pytestmark = pytest.mark.usefixtures("without_children")


def test_the_engine_is_local_unless_the_resource_or_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FIANCHETTO_ENGINE", raising=False)
    assert Compute().name == "local"
    monkeypatch.setenv("FIANCHETTO_ENGINE", "ray://head:10001")
    assert Compute().name == "ray://head:10001"


def test_positions_are_made_by_the_engine_that_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("build_positions", instance, {"positions": {"workers": 1}}, "small")
    assert not result.success
    assert "an engine is local, ray" in failure(result, "positions")
    assert not (root / "positions" / "small" / "manifest.json").exists()


def test_games_are_played_by_the_engine_that_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "checkpoints").mkdir(exist_ok=True)
    (root / "positions" / "some").mkdir(parents=True)
    (root / "positions" / "some" / "manifest.json").write_text("{}")
    make(root / "checkpoints" / "net")
    options = {"checkpoint": "net", "positions": ["some"], "finetune": {"generations": 1}}
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tunings", ["first"])
        said = one(tuned_checkpoint, instance, options, "first")
    assert "an engine is local, ray" in said
