"""Run small jobs of every kind, in this process or by `python -m tests.pipeline.storage.jobs`."""

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from model.training.config import TrainConfig
from pipeline.dataset.join import JoinConfig, join
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.loop import finetune
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.selfplay.config import ExploreConfig
from pipeline.selfplay.job import explore
from pipeline.storage.job_folder import REPORT_KIND, publish_result
from pipeline.training.train import train_on_datasets
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.pipeline.finetune.fakes import Script, write_networks
from tests.pipeline.selfplay.generations import searched, small

CHUNKED = IngestConfig(chunk_mib=1, test_share=0.2)
STEPS = TrainConfig(steps=2, batch_size=8, threads=1)
PLAYER = "Kim"
FINISHED, REFUSED = 0, 2
UNTIMED = ("metrics.jsonl", "report.html", "report.txt", "generations.csv")
"""Files that contain times, which are not compared."""
UNCOMPARED_KEYS = {"seconds", "timing", "validation_seconds", "positions_per_second", "data_wait"}
UNCOMPARED_KEYS |= {"commit"}  # it changes if somebody commits while the tests run


def make_inputs(folder: Path) -> Path:
    """Make the inputs: a dump of three chunks, a small dataset, networks, games of a player."""
    games = [datasets.random_game(seed) for seed in range(40)]
    (folder / "games.pgn").write_text("".join("".join(games[at:] + games[:at]) for at in range(16)))
    dump = datasets.dump(folder / "small.pgn", 40)
    config = IngestConfig(val_share=0.1, test_share=0.1)
    ingest([str(dump)], folder / "positions", config, workers=1)
    write_networks(folder / "networks", 3)
    own_games = [
        game.replace("[Result", f'[White "{PLAYER}"]\n[Date "2024.01.{1 + at % 28:02}"]\n[Result')
        for at, game in enumerate(games)
    ]
    (folder / "mine.pgn").write_text("".join(own_games))
    return folder


def _ingest(inputs: Path, out: Path, seed: int = 0) -> object:
    return ingest([str(inputs / "games.pgn")], out, replace(CHUNKED, seed=seed), workers=1)


def _train(inputs: Path, out: Path, seed: int = 0) -> object:
    return train_on_datasets(
        [inputs / "positions"], "fianchetto-xs", replace(STEPS, seed=seed), out
    )


def _games(inputs: Path, out: Path, seed: int = 0) -> object:
    return explore(None, small(games=8, seed=seed), out, workers=1)


def _positions(inputs: Path, out: Path) -> object:
    config = searched(explorer="hand-written")
    return explore(None, config, out, datasets=[inputs / "positions"], workers=1)


def _match(inputs: Path, out: Path, seed: int = 5) -> object:
    sides = SideConfig(who="hand-written", simulations=2), SideConfig(who="policy:uniform")
    return play_matches([sides], ArenaConfig(games=4, seed=seed, plies=4, concurrency=2), out)


def _finetune(inputs: Path, out: Path, seed: int = 0) -> object:
    config = FinetuneConfig(
        generations=2,
        buffer=3 - seed,
        games_share=1.0,
        explore=ExploreConfig(explorer="hand-written"),
    )
    made = inputs / "networks"
    return finetune(made / "0", config, out, stages=Script(made).stages())


def _imitate(inputs: Path, out: Path) -> object:
    from pipeline.imitation import imitate, tune  # polars, which other jobs do not load

    tune.FOLDS = 2
    return imitate.imitate([str(inputs / "mine.pgn")], [PLAYER], out)


def _join(inputs: Path, out: Path) -> object:
    return join([inputs / "positions"], out, JoinConfig(hold_out="none"))


def _report(inputs: Path, out: Path) -> object:
    return publish_result(
        out, REPORT_KIND, "result.json", {"a": 1}, {"text": b"words", "page": b"more"}
    )


SEEDED: dict[str, Callable[..., object]] = {
    "ingest": _ingest, "train": _train, "games": _games, "match": _match, "finetune": _finetune,
}  # fmt: skip
"""Jobs that run with other settings if they get the keyword `seed=1`."""
JOBS: dict[str, Callable[..., object]] = SEEDED | {
    "positions": _positions, "join": _join, "report": _report, "imitate": _imitate,
}  # fmt: skip
"""Jobs by name, each called with the inputs and its folder."""


def content(out: Path) -> dict[str, Any]:
    """Return the hash of each file of a job, or for JSON its content without times."""
    found: dict[str, Any] = datasets.content(out)
    for name in list(found):
        path = out / name
        if path.suffix == ".json":
            found[name] = _drop_times(json.loads(path.read_bytes()))
        elif path.name in UNTIMED:
            del found[name]
    return found


def _drop_times(tree: Any) -> Any:
    """Remove the entries of JSON that differ from run to run."""
    if isinstance(tree, list):
        return [_drop_times(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {name: _drop_times(tree[name]) for name in sorted(tree.keys() - UNCOMPARED_KEYS)}


def start(name: str, inputs: Path, out: Path, kill_at: int = 0) -> forked.Popen:
    """Start a job in a process that kills itself before its file operation `kill_at`."""
    words = [sys.executable, "-m", "tests.pipeline.storage.jobs", name, str(inputs), str(out)]
    variables = {forked.KILL_AT: str(kill_at)} if kill_at else {}
    return forked.Popen(words, cwd=REPOSITORY, env=os.environ | variables)


def count(name: str, inputs: Path, out: Path) -> tuple[int, int]:
    """Run a job in a process; return its numbers of file operations and of fsyncs."""
    assert start(name, inputs, out).wait() == FINISHED
    numbers = out.with_name(f"{out.name}.counts")
    operations, synced = map(int, numbers.read_text().split())
    return operations, synced


def main(name: str, inputs: Path, out: Path) -> int:
    """Run a job, and write its numbers of file operations and fsyncs beside its folder."""
    operations, synced, fsync = [0], [0], os.fsync

    def count_and_fsync(descriptor: int) -> None:
        synced[0] += stat.S_ISREG(os.fstat(descriptor).st_mode)
        fsync(descriptor)

    os.fsync = count_and_fsync
    forked.count_operations(lambda number: operations.__setitem__(0, number))
    try:
        JOBS[name](inputs, out)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    out.with_name(f"{out.name}.counts").write_text(f"{operations[0]} {synced[0]}")
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
