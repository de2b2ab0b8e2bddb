"""Where the data lies, and what works on them: settings of the instance, by environment variables.

None of them is part of a run's configuration: whoever can launch a run cannot name a program, a server or a folder.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.files.shards import MANIFEST
from pipeline.dumps.fetch import LICHESS, FetchConfig, month_of
from pipeline.executors.by_name import LOCAL
from pipeline.samples.shipped import SAMPLE as SAMPLE_FILE

ENDINGS = (".pgn", ".pgn.zst", ".pgn.bz2", ".pgn.gz")
SAMPLE = "sample"
"""Partition key of the embedded sample dump."""


class Datasets(dg.ConfigurableResource[None]):
    """The folder of datasets: `dumps/ positions/ training_sets/ checkpoints/ tuned/ reports/` and the embedded `sample/`."""

    @property
    def fetching(self) -> FetchConfig:
        """The server that months are fetched from: the environment variable FIANCHETTO_LICHESS, or Lichess."""
        return FetchConfig(base=os.environ.get("FIANCHETTO_LICHESS") or LICHESS)

    @property
    def path(self) -> Path:
        """The folder as an absolute path: the environment variable FIANCHETTO_DATASETS, or `datasets/` beside the packages."""
        return Path(os.environ.get("FIANCHETTO_DATASETS") or SAMPLE_FILE.parents[1]).resolve()

    def dumps(self) -> dict[str, list[Path]]:
        """Find the dumps by partition key; more than one file for a key is a mistake that `source` explains."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("dumps/*")):
            if (key := key_of(path)) and path.is_file():
                found.setdefault(key, []).append(path)
        for path in sorted(self.path.glob(f"{SAMPLE_FILE.parent.name}/*")):
            if key_of(path):
                found.setdefault(SAMPLE, []).append(path)
        return found

    def source(self, key: str) -> Path:
        """Return the one file of a partition key."""
        files = self.dumps().get(key, [])
        if not files:
            fetched = f", or materialise the partition {month} of `lichess_month`" if (month := month_of(key)) else ""
            raise UserError(
                f"there is no dump {key!r}: put {key}.pgn[.zst|.bz2|.gz] into {self.path / 'dumps'}{fetched}"
            )
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise UserError(f"{names} are all called {key!r}: rename or remove all but one")
        return files[0]

    def dropped(self) -> dict[str, list[Path]]:
        """Find the dumps by partition key that lie in `dumps/`: all but the embedded sample."""
        return {key: files for key, files in self.dumps().items() if files[0].parent.name == "dumps"}

    def positions(self, key: str) -> Path:
        """Return the directory of the shards of a dump."""
        return self.path / "positions" / _plain("positions dataset", key)

    def materialised(self, names: tuple[str, ...] = (), promised: Collection[str] = ()) -> list[Path]:
        """Return the positions datasets that are complete, or those named, in order of name.

        `promised` are the partitions that Dagster calls materialised. Raises UserError where one that is wanted is not there.
        """
        folder = self.path / "positions"
        gone = sorted(name for name in names or promised if not (self.positions(name) / MANIFEST).is_file())
        if broken := [name for name in gone if name in promised]:
            raise UserError(
                f"positions of {', '.join(broken)} are materialised and not in {folder}: materialise them again, or wipe "
                "their materializations"
            )
        if gone:
            raise UserError(f"there are no positions called {', '.join(gone)} in {folder}")
        found = [path.parent for path in sorted(folder.glob(f"*/{MANIFEST}")) if not path.parent.name.startswith(".")]
        chosen = [path for path in found if not names or path.name in names]
        if not chosen:
            raise UserError(f"{folder} holds no complete dataset: materialise `positions` first")
        return chosen

    def checkpoint(self, name: str) -> Path:
        """Return the directory of a checkpoint."""
        return self.path / "checkpoints" / _plain("checkpoint", name)

    def tuned(self, name: str) -> Path:
        """Return the directory of a fine-tuning."""
        return self.path / "tuned" / _plain("fine-tuning", name)

    def training_set(self, name: str) -> Path:
        """Return the directory of a training set."""
        return self.path / "training_sets" / _plain("training set", name)


def _plain(what: str, name: str) -> str:
    """Return a name back if it is that of a plain folder."""
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise UserError(f"a {what}'s name is a plain folder name that begins with no dot, not {name!r}")
    return name


class Compute(dg.ConfigurableResource[None]):
    """Where the work of an asset is done, and the chess engine that plays and judges."""

    @property
    def name(self) -> str:
        """The executor, named as on the command line: the environment variable FIANCHETTO_ENGINE, or local."""
        return os.environ.get("FIANCHETTO_ENGINE") or LOCAL

    @property
    def uci_engine(self) -> str:
        """The command of a UCI engine: the environment variable FIANCHETTO_UCI_ENGINE ("" for none), or stockfish."""
        return os.environ.get("FIANCHETTO_UCI_ENGINE", "stockfish")


def version_of(files: Iterable[Path]) -> str:
    """Return what changes when a dump is written anew or replaced: its size and the time it was last written, as text.

    Raises FileNotFoundError.
    """
    facts = [file.stat() for file in files]
    return " ".join(f"{fact.st_size} bytes of {fact.st_mtime_ns}" for fact in facts)


def key_of(path: Path) -> str | None:
    """Return a dump file's partition key, its name without the ending; None for anything that is no dump or hidden."""
    for ending in sorted(ENDINGS, key=len, reverse=True):
        key = path.name.removesuffix(ending)
        if path.name.endswith(ending) and key and not key.startswith(".") and "..." not in key and key.isprintable():
            return key
    return None
