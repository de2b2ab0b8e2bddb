"""Run the commands of the guides in order, with few games and little work."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.conftest import REPOSITORY
from tests.pipeline.datasets import random_game
from tests.test_documents import CODE_BLOCK, find_commands

SMALLER_OPTIONS = {
    "--minutes": ["--steps", "2", "--batch-size", "16"],
    "--games": ["--games", "2"],
    "--limit": ["--limit", "50"],
    "--simulations": ["--simulations", "2"],
}
INTERACTIVE = {"uci"}
"""Commands that wait for a GUI, and are skipped."""


def reduce_work(words: list[str]) -> list[str]:
    """Replace options of a command by those in SMALLER_OPTIONS."""
    reduced: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in SMALLER_OPTIONS:
            next(rest)
        reduced += SMALLER_OPTIONS.get(word, [word])
    return reduced


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["own_games", "judging", "imitate"])
def test_the_commands_of_a_guide_work_in_order(guide: str, tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text("\n".join(random_game(seed) for seed in range(60)))
    (tmp_path / "other.pgn").write_text("\n".join(random_game(seed) for seed in range(60, 70)))
    shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "datasets" / "embedded")
    text = (REPOSITORY / "docs" / "guides" / f"{guide}.md").read_text()
    shown = find_commands(text, CODE_BLOCK)
    if guide == "judging":  # it uses the results of the first guide
        first = find_commands(
            (REPOSITORY / "docs" / "guides" / "own_games.md").read_text(), CODE_BLOCK
        )
        shown = [words for words in first if words[0] in ("ingest", "train")][:2] + shown
    if guide == "own_games":  # its last section joins two months
        for month in ("2024-01", "2024-02"):
            number = int(month[-1])
            games = "\n".join(random_game(100 * number + seed) for seed in range(30))
            dated = re.sub(r'\[Date "[^"]*"\]', f'[Date "{month.replace("-", ".")}.01"]', games)
            (tmp_path / f"{month}.pgn").write_text(dated)
            shown.insert(0, ["ingest", f"{month}.pgn", "--out", f"datasets/positions/{month}"])
    if guide == "imitate":  # needs games of one player, of a day each, and a friend's network
        tags = (
            f'\n[White "me"]\n[Date "2024.{1 + seed // 28:02}.{1 + seed % 28:02}"]\n'
            for seed in range(60)
        )
        games = (random_game(seed).replace("\n", text, 1) for seed, text in enumerate(tags))
        (tmp_path / "games.pgn").write_text("\n".join(games))
        shutil.copytree(EMBEDDED_CHECKPOINT, tmp_path / "datasets" / "checkpoints" / "friend")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for words in shown:
        needs_stockfish = any("stockfish" in word for word in words)
        if words[0] in INTERACTIVE or (needs_stockfish and not shutil.which("stockfish")):
            continue
        command = [sys.executable, "-m", "pipeline", *reduce_work(words)]
        options = {"capture_output": True, "text": True, "timeout": 480}
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, **options)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr[-500:]}"
