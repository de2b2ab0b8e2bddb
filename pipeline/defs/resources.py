"""Where the data lies: one folder, with a subfolder for each kind of thing."""

import os
from pathlib import Path

import dagster as dg

from engine.errors import UserError
from pipeline.engines import LOCAL
from pipeline.fetch import LICHESS, FetchConfig
from pipeline.sample import SAMPLE as SAMPLE_FILE

ENDINGS = (".pgn", ".pgn.zst", ".pgn.bz2", ".pgn.gz")
SAMPLE = "sample"
"""Partition key of the embedded sample dump."""


class Datasets(dg.ConfigurableResource[None]):
    """The folder of datasets: `dumps/ positions/ training_sets/ checkpoints/ tuned/ reports/` and the embedded `sample/`."""

    root: str = ""
    """The folder; "" takes the environment variable FIANCHETTO_DATASETS, or `datasets/` beside the packages."""
    lichess: str = ""
    """Where months are fetched from; "" takes the environment variable FIANCHETTO_LICHESS, or Lichess itself."""

    @property
    def fetching(self) -> FetchConfig:
        """Where months are fetched from, and how patiently."""
        return FetchConfig(base=self.lichess or os.environ.get("FIANCHETTO_LICHESS") or LICHESS)

    @property
    def path(self) -> Path:
        """The folder as an absolute path."""
        beside = SAMPLE_FILE.parents[1]
        return Path(self.root or os.environ.get("FIANCHETTO_DATASETS") or beside).resolve()

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
        """Give the one file of a partition key."""
        files = self.dumps().get(key, [])
        if not files:
            raise UserError(f"there is no dump {key!r}: put {key}.pgn[.zst|.bz2|.gz] into {self.path / 'dumps'}")
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise UserError(f"{names} are all called {key!r}: rename or remove all but one")
        return files[0]

    def positions(self, key: str) -> Path:
        """Give the directory of the shards of a dump."""
        return self.path / "positions" / key

    def materialised(self, names: tuple[str, ...] = ()) -> list[Path]:
        """Give the positions datasets that are complete, or those named, in order of name."""
        missing = [name for name in names if not (self.positions(name) / "manifest.json").is_file()]
        if missing:
            raise UserError(f"there are no positions called {', '.join(missing)} in {self.path / 'positions'}")
        found = [path.parent for path in sorted(self.path.glob("positions/*/manifest.json"))]
        chosen = [path for path in found if not names or path.name in names]
        if not chosen:
            raise UserError(f"{self.path / 'positions'} holds no complete dataset: materialise `positions` first")
        return chosen

    def checkpoint(self, name: str) -> Path:
        """Give the directory of a checkpoint."""
        return self.path / "checkpoints" / _plain("checkpoint", name)

    def tuned(self, name: str) -> Path:
        """Give the directory of a fine-tuning."""
        return self.path / "tuned" / _plain("fine-tuning", name)

    def training_set(self, name: str) -> Path:
        """Give the directory of a training set."""
        return self.path / "training_sets" / _plain("training set", name)


def _plain(what: str, name: str) -> str:
    """Give a name back if it is that of a plain folder."""
    if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise UserError(f"a {what}'s name is a plain folder name that begins with no dot, not {name!r}")
    return name


class Compute(dg.ConfigurableResource[None]):
    """What spreads the work of an asset."""

    engine: str = ""
    """An engine, named as on the command line; "" takes the environment variable FIANCHETTO_ENGINE, or local."""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine or os.environ.get("FIANCHETTO_ENGINE") or LOCAL


def key_of(path: Path) -> str | None:
    """Give a dump file's partition key, its name without the ending; None for anything that is no dump or hidden."""
    for ending in sorted(ENDINGS, key=len, reverse=True):
        key = path.name.removesuffix(ending)
        if path.name.endswith(ending) and key and not key.startswith(".") and "..." not in key and key.isprintable():
            return key
    return None
