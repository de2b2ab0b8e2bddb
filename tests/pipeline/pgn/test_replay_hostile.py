"""Compare hostile and real PGN files game by game with python-chess."""

from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.pipeline import by_kernels
from tests.pipeline.pgn import mutants

FOLDERS = (
    "chess-library", "chess.js", "chesslablab-unit", "crazyara", "fastchess", "kdave",
    "pgn-extract", "python-chess", "yacai",
)  # fmt: skip

QUICK_GAMES = 8
"""Games of a file that the quick tests compare, at 2 ms per game; the slow tests compare all."""

STATUSES = {
    # folder: number of games by status. python-chess plays null moves and variants, and accepts a
    # checkmate with the wrong result. Such games are not standard chess, so they are not used.
    "": {"used": 395},
    "chess-library": {
        "used": 15, "illegal move": 1, "unreadable move": 1, "no moves": 12, "bad FEN": 2,
        "unfinished": 1,
    },
    "chess.js": {"unreadable move": 1, "used": 2, "unfinished": 1},
    "chesslablab-unit": {"unreadable move": 14, "unfinished": 103, "used": 7159},
    "crazyara": {"variant": 1333},
    "fastchess": {"variant": 4, "used": 9, "no moves": 3, "illegal move": 1},
    "kdave": {"used": 4, "unfinished": 3},
    "pgn-extract": {
        "used": 287, "unclosed comment": 1, "null move": 2, "result contradicts board": 5,
        "unreadable move": 1, "unfinished": 6,
    },
    "python-chess": {"null move": 1, "variant": 8, "used": 11, "no moves": 2},
    "yacai": {"used": 34, "unfinished": 41},
}  # fmt: skip

REAL = {
    # file: (number of games to compare, number of all games by status)
    "lichess_dump_2013-01_100.pgn": (100, {"used": 100}),
    "lichess_dump_2021-10_999.pgn": (999, {"used": 986, "no moves": 13}),
    "lichess_export_2016-05.pgn": (1000, {"used": 2924, "no moves": 4, "variant": 5}),
    "lichess_export_2024-05_blitz.pgn": (300, {"used": 4075}),
    "lichess_export_2022-2026_blitz.pgn": (300, {"used": 3970}),
}


def compare_and_count(path: Path, name: str, count: int) -> Counter[str]:
    """Compare the first `count` games of a file with python-chess; count all games by status."""
    games = list(by_kernels.games(path))
    assert not (found := mutants.find_differences(games[:count])), f"{name}: {found}"
    return Counter(game.status for game in games)


def list_files(folder: str) -> list[tuple[Path, str]]:
    """Return the paths and names of the hostile files in a folder, or in no folder for ""."""
    root = shared_data("robustness")
    found = root.iterdir() if not folder else (root / folder).rglob("*")
    return [(path, path.relative_to(root).as_posix()) for path in sorted(found) if path.is_file()]


def test_every_hostile_file_is_compared() -> None:
    everything = [path for path in shared_data("robustness").rglob("*") if path.is_file()]
    compared = [path for folder in ("", *FOLDERS) for path, _ in list_files(folder)]
    assert sorted(everything) == sorted(compared)
    assert len(everything) == 313


@pytest.mark.parametrize(
    ("folder", "count"),
    [
        *((folder, QUICK_GAMES) for folder in ("", *FOLDERS)),
        *(pytest.param(folder, 1_000, marks=pytest.mark.slow) for folder in ("", *FOLDERS)),
    ],
)
def test_the_games_of_hostile_files_are_read_as_by_python_chess(folder: str, count: int) -> None:
    statuses: Counter[str] = Counter()
    for path, name in list_files(folder):
        statuses += compare_and_count(path, name, count)
    assert statuses == STATUSES[folder]


@pytest.mark.parametrize("limit", [QUICK_GAMES, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REAL)
def test_the_games_of_real_files_are_read_as_by_python_chess(name: str, limit: int) -> None:
    count, statuses = REAL[name]
    assert compare_and_count(shared_data(f"pgn/{name}"), name, min(count, limit)) == statuses
