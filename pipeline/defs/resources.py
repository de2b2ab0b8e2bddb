"""The instance's settings, from the environment: data folder, executor and chess engine.

They are not part of a run's configuration, so a launched run cannot choose a program, a server or a
folder.
"""

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.files.shards import MANIFEST
from pipeline.dumps.fetch import LICHESS, FetchConfig, month_of
from pipeline.executors.local import LOCAL
from pipeline.samples.shipped import SAMPLE as SAMPLE_FILE

ENDINGS = (".pgn", ".pgn.zst", ".pgn.bz2", ".pgn.gz", ".pgn.zip")
SAMPLE = "sample"
"""Partition key of the embedded sample dump."""


class Datasets(dg.ConfigurableResource[None]):
    """The data folder: dumps, positions, training sets, checkpoints, tuned, reports, sample."""

    @property
    def fetching(self) -> FetchConfig:
        """The server to download months from: FIANCHETTO_LICHESS, or Lichess."""
        return FetchConfig(base=os.environ.get("FIANCHETTO_LICHESS") or LICHESS)

    @property
    def path(self) -> Path:
        """The folder as an absolute path: FIANCHETTO_DATASETS, or `datasets/` beside the code."""
        return Path(os.environ.get("FIANCHETTO_DATASETS") or SAMPLE_FILE.parents[1]).resolve()

    def dumps(self) -> dict[str, list[Path]]:
        """Return the dumps by partition key; `source` refuses more than one file for a key."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("dumps/*")):
            if (key := key_of(path)) and path.is_file():
                found.setdefault(key, []).append(path)
        for path in sorted(self.path.glob(f"{SAMPLE_FILE.parent.name}/*")):
            if key_of(path):
                found.setdefault(SAMPLE, []).append(path)
        return found

    def source(self, key: str) -> Path:
        """Return the file of a partition key; raises UserError unless there is exactly one."""
        files = self.dumps().get(key, [])
        if not files:
            month = month_of(key)
            download = f", or launch the job `fetch_month` with `month: {month}`" if month else ""
            raise UserError(
                f"there is no dump {key!r}: put {key}.pgn[.zst|.bz2|.gz|.zip] into "
                f"{self.path / 'dumps'}{download}"
            )
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise UserError(f"{names} have the same name {key!r}: rename or remove all but one")
        return files[0]

    def positions(self, key: str) -> Path:
        """Return the folder of a dump's positions."""
        return self.path / "positions" / _require_plain("positions dataset", key)

    def find_positions(
        self, names: tuple[str, ...] = (), expected: Collection[str] = ()
    ) -> list[Path]:
        """Return the complete positions in `names`, or those of all dumps, sorted by name.

        The sample is one of all dumps only if there is no other. `expected` are the partitions that
        Dagster lists as materialized. Raises UserError if wanted positions are missing.
        """
        folder = self.path / "positions"
        missing = sorted(
            name for name in names or expected if not (self.positions(name) / MANIFEST).is_file()
        )
        if lost := [name for name in missing if name in expected]:
            raise UserError(
                f"positions of {', '.join(lost)} are materialized but missing in {folder}: "
                f"materialize them again, or wipe their materializations"
            )
        if missing:
            raise UserError(f"there are no positions called {', '.join(missing)} in {folder}")
        if names:
            return [folder / name for name in sorted(set(names))]
        wanted = {*self.dumps(), *expected}
        found = [
            path.parent
            for path in sorted(folder.glob(f"*/{MANIFEST}"))
            if path.parent.name in wanted
        ]
        if not found:
            raise UserError(
                f"{folder} has no complete dataset of a dump: materialize `positions`, or name "
                f"datasets"
            )
        return [path for path in found if path.name != SAMPLE] or found

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a checkpoint."""
        return self.path / "checkpoints" / _require_plain("checkpoint", name)

    def imitation(self, player: str) -> Path:
        """Return the folder of a player's network; unusual names get a hash."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", player)[:60]
        digest = "" if plain == player else f"-{hashlib.sha256(player.encode()).hexdigest()[:8]}"
        return self.checkpoint(f"imitation-{plain}{digest}")

    def tuned(self, name: str) -> Path:
        """Return the folder of a fine-tuning."""
        return self.path / "tuned" / _require_plain("fine-tuning", name)

    def training_set(self, name: str) -> Path:
        """Return the folder of a training set."""
        return self.path / "training_sets" / _require_plain("training set", name)


def _require_plain(what: str, name: str) -> str:
    """Return the name; raises UserError unless it is the name of a plain folder."""
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise UserError(
            f"the name of a {what} must be a plain folder name without a leading dot, got {name!r}"
        )
    return name


class Compute(dg.ConfigurableResource[None]):
    """Where work runs, and the chess engine to play against and to evaluate with."""

    @property
    def name(self) -> str:
        """The executor, named as on the command line: FIANCHETTO_ENGINE, or `local`."""
        return os.environ.get("FIANCHETTO_ENGINE") or LOCAL

    @property
    def uci_engine(self) -> str:
        """The command of a UCI engine: FIANCHETTO_UCI_ENGINE ("" for none), or stockfish."""
        return os.environ.get("FIANCHETTO_UCI_ENGINE", "stockfish")


def version_of(file: Path) -> str:
    """Return the size and modification time of a file as text; raises FileNotFoundError."""
    stat = file.stat()
    return f"{stat.st_size} bytes of {stat.st_mtime_ns}"


def key_of(path: Path) -> str | None:
    """Return a dump's partition key, its name without the extension; None for other files."""
    for ending in sorted(ENDINGS, key=len, reverse=True):
        key = path.name.removesuffix(ending)
        if (
            path.name.endswith(ending)
            and key
            and not key.startswith(".")
            and "..." not in key
            and key.isprintable()
        ):
            return key
    return None
