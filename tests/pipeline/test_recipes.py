"""Each recipe is valid for the commands that read it, and its network can be trained."""

import json
from pathlib import Path

import pytest

from model.network.presets import presets
from pipeline.cli.main import parse
from tests.conftest import REPOSITORY
from tests.model.network.test_presets import small
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import make_dataset
from tests.test_documents import CODE_BLOCK, find_commands

RECIPES = sorted((REPOSITORY / "pipeline" / "recipes").glob("*.yaml"))
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
SMALL = "--steps 2 --batch-size 4 --device cpu --set patience=0 --set validation_every_steps=0"


@pytest.fixture(scope="module")
def positions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset of a few games."""
    return make_dataset(tmp_path_factory.mktemp("recipes"), 20, val_share=0.2)


@each_recipe
def test_every_command_reads_its_part(recipe: Path) -> None:
    words = ["--config", str(recipe)]
    assert parse(["ingest", "d.pgn", "--out", "x", *words]).ingest.planes in recipe.read_text()
    train = parse(["train", "--positions", "p", "--out", "x", *words])
    assert train.preset in presets()
    assert recipe.stem in (train.preset, "human")
    assert train.train.learning_rate > 0
    if "\nfinetune:" in recipe.read_text():
        loop = parse(["finetune", "--checkpoint", "c", "--out", "x", *words]).finetune
        assert loop.explore.explorer == "network"
        assert loop.explore.search.algorithm == "puct"


@each_recipe
def test_its_network_takes_a_few_steps(
    recipe: Path, positions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network has fewer and narrower layers than the recipe's."""
    monkeypatch.setattr("model.training.loop.VALIDATION_POSITIONS", 8)
    monkeypatch.setattr("model.network.presets.preset", lambda name: small(presets()[name]))
    words = f"train --positions {positions} --out {tmp_path / 'net'} --json --config {recipe}"
    result = parse(f"{words} {SMALL}".split()).run()
    assert result["step"] == 2
    card = json.loads((tmp_path / "net" / "checkpoint.json").read_text())
    assert card["preset"]["name"] == parse(words.split()).preset
    assert card["finished"]


def test_the_recipe_human_mixes_datasets_and_then_trains_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the commands of the recipes' README on a few games, for a few steps."""
    monkeypatch.setattr("model.training.loop.VALIDATION_POSITIONS", 8)
    monkeypatch.setattr("model.network.presets.preset", lambda name: small(presets()[name]))
    monkeypatch.chdir(tmp_path)
    for first, name in enumerate(("RAPID", "BLITZ")):
        datasets.dump(Path(f"{name}.pgn"), 20, first=100 * first)
    shown = find_commands(
        (REPOSITORY / "pipeline" / "recipes" / "README.md").read_text(), CODE_BLOCK
    )
    for line in (line for line in shown if "pipeline/recipes/human.yaml" in line):
        words = [str(REPOSITORY / word) if word.startswith("pipeline/") else word for word in line]
        if words[0] == "train":
            index = words.index("--minutes")
            words[index : index + 2] = SMALL.split()
        parse([*words, "--json"]).run()
    first, last = (
        json.loads(Path(f"datasets/checkpoints/{name}/checkpoint.json").read_text())
        for name in ("all", "human")
    )
    assert first["data"]["shares"] == [0.6, 0.4]
    assert [dataset["name"] for dataset in first["data"]["datasets"]] == ["rapid", "blitz"]
    assert [dataset["name"] for dataset in last["data"]["datasets"]] == ["rapid"]
    assert last["data"]["start"]["weights_sha256"] == first["files"]["weights"]["sha256"]
    assert [card["config"]["decay"] for card in (first, last)] == ["none", "linear"]
