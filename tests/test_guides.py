"""Run the commands of the guides in order, with few games and small numbers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.samples.shipped import EMBEDDED
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game
from tests.test_documents import FENCED, commands

SMALLER = {
    "--minutes": ["--steps", "2", "--batch-size", "16"],
    "--games": ["--games", "2"],
    "--limit": ["--limit", "50"],
    "--simulations": ["--simulations", "2"],
}
SKIPPED = {"uci"}
"""Commands that wait for a GUI."""


def shrink(words: list[str]) -> list[str]:
    """Replace options of a command by those in SMALLER."""
    quick: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in SMALLER:
            next(rest)
        quick += SMALLER.get(word, [word])
    return quick


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["own_games", "judging", "imitate"])
def test_the_commands_of_a_guide_work_in_order(guide: str, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text("\n".join(random_game(seed) for seed in range(60)))
    (tmp_path / "other.pgn").write_text("\n".join(random_game(seed) for seed in range(60, 70)))
    shutil.copytree(EMBEDDED, tmp_path / "datasets" / "embedded")
    text = (REPOSITORY / "docs" / "guides" / f"{guide}.md").read_text()
    shown = commands(text, FENCED)
    if guide == "judging":  # it begins with what the first guide makes
        first = commands((REPOSITORY / "docs" / "guides" / "own_games.md").read_text(), FENCED)
        shown = [words for words in first if words[0] in ("ingest", "train")][:2] + shown
    if guide == "own_games":  # the last section joins two months
        for month in ("2024-01", "2024-02"):
            number = int(month[-1])
            games = "\n".join(random_game(100 * number + seed) for seed in range(30))
            dated = re.sub(r'\[Date "[^"]*"\]', f'[Date "{month.replace("-", ".")}.01"]', games)
            (tmp_path / f"{month}.pgn").write_text(dated)
            shown.insert(0, ["ingest", f"{month}.pgn", "--out", f"datasets/positions/{month}"])
    if guide == "imitate":  # all games are one person's, a day each, and a friend has a network
        tags = (
            f'\n[White "me"]\n[Date "2024.{1 + seed // 28:02}.{1 + seed % 28:02}"]\n'
            for seed in range(60)
        )
        games = (random_game(seed).replace("\n", more, 1) for seed, more in enumerate(tags))
        (tmp_path / "games.pgn").write_text("\n".join(games))
        shutil.copytree(EMBEDDED, tmp_path / "datasets" / "checkpoints" / "friend")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for words in shown:
        if words[0] in SKIPPED or (
            any("stockfish" in word for word in words) and not shutil.which("stockfish")
        ):
            continue
        command = [sys.executable, "-m", "pipeline", *shrink(words)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=480,
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr[-500:]}"
