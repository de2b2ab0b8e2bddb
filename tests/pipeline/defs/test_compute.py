"""The assets take the engine as a resource, one setting for the whole instance."""

from pathlib import Path

import dagster as dg
import pytest

from pipeline.defs.jobs import register
from pipeline.defs.resources import Compute, Datasets
from pipeline.defs.tuned import tuned_checkpoint
from tests.model.test_checkpoint import make
from tests.pipeline.defs.conftest import execute, failure

pytestmark = pytest.mark.usefixtures("without_children")


def test_the_engine_is_local_unless_the_resource_or_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIANCHETTO_ENGINE", raising=False)
    assert Compute().name == "local"
    monkeypatch.setenv("FIANCHETTO_ENGINE", "ray://head:10001")
    assert Compute().name == "ray://head:10001"


def test_positions_are_made_by_the_engine_that_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    with dg.DagsterInstance.ephemeral() as instance:
        register(instance, Datasets())
        result = execute("build_positions", instance, {"positions": {"workers": 1}}, "small")
    assert not result.success
    assert "an engine is local, ray" in failure(result, "positions")
    assert not (root / "positions" / "small" / "manifest.json").exists()


def said_of_abacus(monkeypatch: pytest.MonkeyPatch, asset: dg.AssetsDefinition, options: dict[str, object]) -> str:
    """Make an asset by an engine that there is not, and give what it says."""
    (name,) = asset.key.path
    monkeypatch.setenv("FIANCHETTO_ENGINE", "abacus")
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [asset],
            instance=instance,
            resources={"datasets": Datasets(), "compute": Compute()},
            run_config={"ops": {name: {"config": options}}},
            raise_on_error=False,
        )
    assert not result.success
    return failure(result, name)


def test_games_are_played_by_the_engine_that_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "checkpoints").mkdir(exist_ok=True)
    (root / "positions" / "some").mkdir(parents=True)
    (root / "positions" / "some" / "manifest.json").write_text("{}")
    make(root / "checkpoints" / "net")
    options = {"checkpoint": "net", "positions": ["some"], "name": "tuned", "finetune": {"generations": 1}}
    assert "an engine is local, ray" in said_of_abacus(monkeypatch, tuned_checkpoint, options)
