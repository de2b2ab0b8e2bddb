"""The asset of players: folders of hostile names, its check, and a whole run on a player's
games."""

from pathlib import Path

import dagster as dg
import pytest

from pipeline.defs import checks
from pipeline.defs.imitated import imitation, players
from pipeline.defs.resources import Datasets
from tests.pipeline.defs.conftest import failure, random_pgn

HOSTILE = ("../../etc", "a/b", "<script>", "Carlsen, Magnus", ".", "a" * 300, "Zoë", "\x1b[1m")


def test_every_name_is_one_plain_folder_of_its_own(root: Path) -> None:
    folders = [Datasets().imitation(name) for name in (*HOSTILE, "Ann", "ann-1", "Carlsen_ Magnus")]
    assert len(set(folders)) == len(folders)
    assert all(path.parent == root / "checkpoints" and len(path.name) < 90 for path in folders)
    assert folders[-3].name == "imitation-Ann"


def test_an_imitation_is_better_when_its_whole_interval_says_so() -> None:
    row = {"top1_difference": 0.05, "top1_low": 0.01, "top1_high": 0.09}
    result = {
        "headline": "x",
        "networks": [{"name": "base", "all": {}}, {"name": "imitation", "all": row}],
    }
    assert checks.evaluate_imitation(result).passed
    for low in (-0.01, None):
        row["top1_low"] = low  # type: ignore[assignment]
        assert not checks.evaluate_imitation(result).passed


def materialize(player: str, instance: dg.DagsterInstance) -> str:
    """Materialize a player's partition and return what it says when it fails."""
    result = dg.materialize(
        [imitation],
        instance=instance,
        partition_key=player,
        resources={"datasets": Datasets()},
        raise_on_error=False,
    )
    return "" if result.success else failure(result, "imitation")


@pytest.mark.slow
def test_a_player_is_imitated_from_the_dumps(root: Path) -> None:
    text = random_pgn(40).replace('[White "a"]', '[White "Carlsen, M"]')
    for day in range(1, 21):
        text = text.replace("????.??.??", f"2024.01.{day:02}", 2)
    (root / "dumps" / "small.pgn").write_text(text)
    with dg.DagsterInstance.ephemeral() as instance:
        assert players.name is not None
        instance.add_dynamic_partitions(players.name, ["Carlsen, M", "nobody"])
        assert "the most frequent are 'Carlsen, M' (40), 'b' (40)" in materialize(
            "nobody", instance
        )
        assert materialize("Carlsen, M", instance) == ""
        event = instance.get_latest_materialization_event(imitation.key)
        assert event is not None
        assert event.asset_materialization is not None
        found = {name: value.value for name, value in event.asset_materialization.metadata.items()}
        folder = Datasets().imitation("Carlsen, M")
        assert str(found["headline"]).startswith(("Against the network", "The games of"))
        assert found["page"] == f"/reports/{folder.name}/report.html"
        assert (root / "reports" / folder.name / "report.html").exists()
        assert found["path"] == str(folder)
