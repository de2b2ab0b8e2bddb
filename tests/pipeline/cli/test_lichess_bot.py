"""lichess-bot's own code plays a game with our engine, by the configuration that docs/playing.md
shows.

It needs a checkout of https://github.com/lichess-bot-devs/lichess-bot with its `venv`, named by
LICHESS_BOT.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import chess
import pytest

from tests.conftest import REPOSITORY
from tests.pipeline.cli.lichess_server import TOKEN, Lichess, lichess

BOT = Path(os.environ.get("LICHESS_BOT", "nowhere"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BOT / "lichess-bot.py").exists(), reason="LICHESS_BOT names no checkout of lichess-bot"
    ),
]


def played(folder: Path, options: str = "", most_moves: int = 1000) -> tuple[Lichess, str]:
    """Let lichess-bot play a game by the documented configuration, with more options; give the game
    and what it logged."""
    (written,) = re.findall(
        r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "playing.md").read_text(), re.DOTALL
    )
    program = Path(sys.executable).parent / "fianchetto-uci"
    copy = folder / "lichess-bot"
    shutil.copytree(BOT, copy, ignore=shutil.ignore_patterns("venv", ".git"))
    with lichess(most_moves=most_moves) as (url, game):
        config = re.sub("(?m)^token: .*$", f'token: "{TOKEN}"', written)
        config = re.sub("(?m)^url: .*$", f'url: "{url}"', config)
        config = re.sub("(?m)^  dir: .*$", f'  dir: "{program.parent}"', config)
        (copy / "config.yml").write_text(
            config.replace("  uci_options:\n", f"  uci_options:\n{options}")
        )
        with (folder / "log").open("w") as log:
            bot = subprocess.Popen(
                [BOT / "venv" / "bin" / "python", "lichess-bot.py"],
                cwd=copy,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                assert game.over.wait(500), (folder / "log").read_text()
            finally:
                bot.send_signal(signal.SIGINT)
                bot.wait(60)
    return game, (folder / "log").read_text()


def test_lichess_bot_plays_a_whole_game_by_the_documented_configuration(tmp_path: Path) -> None:
    game, said = played(tmp_path)
    assert (game.status, game.winner, game.refused) == ("mate", "white", 0), said
    outcome = game.board.outcome()
    assert outcome is not None
    assert outcome.winner == chess.WHITE
    assert "Engine configuration OK" in said
    assert "Traceback" not in said


def test_lichess_bot_plays_moves_of_the_policy(tmp_path: Path) -> None:
    game, said = played(tmp_path, "    Style: human\n    Rating: 1500\n", most_moves=12)
    assert game.winner == "white", said
    assert game.refused == 0
    assert "Traceback" not in said
