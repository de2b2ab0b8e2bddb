"""Several matches in one run: round robins, names of players, the table."""

import json
import sys
from itertools import combinations
from pathlib import Path

import pytest

from engine.match.config import PlayerError
from pipeline.errors import Stopped
from pipeline.matches.arena import arena, play_matches, table_of
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import format_elo
from tests.engine.match.test_arena import ROGUE

WEAK = SideConfig(who="policy:uniform")


def test_each_of_three_players_meets_the_others_and_a_stopped_round_robin_continues(
    tmp_path: Path,
) -> None:
    engine = SideConfig(who=f"uci:{sys.executable} {ROGUE} fair", nodes=1, options=("Manners=2",))
    sides, config = (
        (SideConfig(who="hand-written", simulations=2), WEAK, engine),
        ArenaConfig(games=2, plies=4),
    )

    def stop() -> bool:
        return len(list(tmp_path.glob("*/summary.json"))) > 1

    with pytest.raises(Stopped, match="run the same command to continue"):
        arena(sides, config, tmp_path, stop=stop)
    kept = {path: path.read_bytes() for path in tmp_path.glob("*/games.pgn")}
    assert kept
    assert not (tmp_path / "table.md").exists()
    result = arena(sides, config, tmp_path)
    names = ["hand-written 2", "uniform policy", "Rogue 1 nodes"]
    assert [(row["a"], row["b"]) for row in result["rows"]] == list(combinations(names, 2))
    assert all(row["games"] == 2 for row in result["rows"])
    assert {path: path.read_bytes() for path in kept} == kept, (
        "finished matches are not played again"
    )
    assert json.loads((tmp_path / "matches.json").read_text())["rows"] == result["rows"]
    assert (tmp_path / "table.md").read_text() == result["text"] + "\n"
    assert arena(sides, config, tmp_path) == result


def test_players_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    engine = f"uci:{sys.executable} {ROGUE} fair"
    twins = [SideConfig(who=engine, nodes=1, options=(f"Manners={value}",)) for value in (1, 2)]
    pairings = [(WEAK, twin) for twin in twins]
    rows = play_matches(pairings, ArenaConfig(games=2, plies=4), tmp_path)["rows"]
    assert len({row["match"] for row in rows}) == 2
    assert all((tmp_path / row["match"] / "games.pgn").exists() for row in rows)
    with pytest.raises(PlayerError, match="listed twice"):
        play_matches([*pairings, pairings[0]], ArenaConfig(games=2), tmp_path)


def test_a_match_on_a_clock_counts_flags(tmp_path: Path) -> None:
    flagging = SideConfig(who=f"uci:{sys.executable} {ROGUE} slow", tc="40/0.4")
    clocked = SideConfig(who="policy:hand-written", tc="40/60")
    pairings = [
        (clocked, side) for side in (flagging, SideConfig(who="policy:uniform", tc="40/60"))
    ]
    result = play_matches(pairings, ArenaConfig(games=2, plies=4), tmp_path)
    assert [row["forfeits"]["b"] for row in result["rows"]] == [{"timeout": 2}, {}]
    assert result["text"].splitlines()[2].endswith("| 2 |")
    assert (
        '[TimeControl "40/60"]' in (tmp_path / result["rows"][1]["match"] / "games.pgn").read_text()
    )


def test_the_table_shows_elo_and_forfeits() -> None:
    row = {
        "a": "xs 64",
        "b": "Stockfish 15.1 100 nodes",
        "elo": 12.3,
        "elo_low": -40.0,
        "elo_high": 65.2,
    }
    row |= {
        "score": 0.518,
        "wins": 9,
        "draws": 2,
        "losses": 8,
        "forfeits": {"a": {}, "b": {"crash": 1, "timeout": 2}},
    }
    line = table_of([row]).splitlines()[-1]
    assert line == "| xs 64 | Stockfish 15.1 100 nodes | +12 [-40, +65] | 0.518 | 9 2 8 | 3 |"


def test_the_elo_of_a_clean_sweep_is_a_bound() -> None:
    assert format_elo({"elo": None, "elo_low": 160.6, "elo_high": None}) == "above +161"
    assert format_elo({"elo": None, "elo_low": None, "elo_high": -160.6}) == "below -161"
    assert (
        format_elo({"seed_elo": 381.7, "seed_elo_low": 160.6, "seed_elo_high": 1199.8}, "seed_")
        == "+382 [+161, +1200]"
    )
