import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import chess
import chess.pgn
import dagster as dg
import pytest

from pipeline.definitions import defs
from pipeline.defs.assets import accuracy_report, checkpoint, dump, positions, training_set
from pipeline.defs.jobs import register
from pipeline.defs.resources import Datasets

ROOT = Path(__file__).parents[3]
CHAIN = (dump, positions, training_set, checkpoint, accuracy_report)
"""All assets but those of self-play."""
STEPS = {"train": {"minutes": 0.0, "steps": 12, "batch_size": 16, "threads": 1}}


def random_pgn(games: int, seed: int = 0, plies: int = 40) -> str:
    """Games of random legal moves in Lichess's layout."""
    rng = random.Random(seed)
    written = []
    for number in range(games):
        game, board = chess.pgn.Game(), chess.Board()
        headers = {"Event": "Rated Blitz game", "Site": f"https://lichess.org/{number:08d}", "White": "a", "Black": "b"}
        headers |= {"WhiteElo": str(1400 + number), "BlackElo": str(1500 + number), "TimeControl": "300+0"}
        node: chess.pgn.GameNode = game
        while not board.is_game_over() and board.ply() < plies:
            move = rng.choice(list(board.legal_moves))
            node = node.add_variation(move)
            board.push(move)
        result = board.result() if board.is_game_over() else rng.choice(["1-0", "0-1", "1/2-1/2"])
        for name, value in (headers | {"Result": result, "Termination": "Normal"}).items():
            game.headers[name] = value
        written.append(f"{game}\n\n")
    return "".join(written)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of datasets with one dump, `small`, and an instance's home beside it."""
    return prepared(tmp_path, monkeypatch)


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = folder / "datasets"
    (datasets / "dumps").mkdir(parents=True)
    (datasets / "dumps" / "small.pgn").write_text(random_pgn(60))
    home = folder / "home"
    home.mkdir()
    settings = (ROOT / "dagster_home" / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(settings.replace("poll_interval_seconds: 10", "poll_interval_seconds: 2"))
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("FIANCHETTO_DATASETS", str(datasets))
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return datasets


def execute(
    job: str, instance: dg.DagsterInstance, ops: dict[str, object], key: str | None = None
) -> dg.ExecuteInProcessResult:
    """Run a job in this process with the real definitions; `everything` is CHAIN, materialised as from the asset graph."""
    config = {"ops": {name: {"config": values} for name, values in ops.items()}}
    silent = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    chosen = [asset.key for asset in CHAIN] if job == "everything" else None
    found = defs().resolve_job_def(job) if chosen is None else defs().resolve_implicit_global_asset_job_def()
    return found.execute_in_process(
        config | silent, instance=instance, partition_key=key, raise_on_error=False, asset_selection=chosen
    )


@pytest.fixture(scope="session")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, dg.DagsterInstance, dg.ExecuteInProcessResult]]:
    """The folder, instance and result of all assets but self-play's on a small dump, made once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        datasets = prepared(tmp_path_factory.mktemp("made"), monkeypatch)
        with dg.DagsterInstance.ephemeral() as instance:
            register(instance, Datasets())
            options = {
                "positions": {"workers": 1, "verified_rows": 64, "ingest": {"test_share": 0.2, "val_share": 0.2}}
            }
            result = execute("everything", instance, options | {"checkpoint": STEPS}, "small")
            yield datasets, instance, result


@pytest.fixture
def copied(made: tuple[Path, dg.DagsterInstance, dg.ExecuteInProcessResult], root: Path) -> Path:
    """A folder of datasets that holds a copy of the positions and the checkpoint."""
    for name in ("positions", "checkpoints"):
        shutil.copytree(made[0] / name, root / name)
    return root
