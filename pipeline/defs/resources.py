"""Settings from environment variables, and all Dagster definitions of this folder.

The data folder, executor, download server and chess engine are not part of a run's configuration,
so launching a run cannot select a program, server or folder.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.files.columns import MANIFEST
from pipeline.defs.launchpad.forms import keep_order
from pipeline.dumps.fetch import LICHESS, FetchConfig, parse_month
from pipeline.executors.local import LOCAL
from pipeline.samples.shipped import SAMPLE_DUMP as SAMPLE_FILE

DUMP_SUFFIX = re.compile(r"\.pgn(\.zst|\.bz2|\.gz|\.zip)?$")
SAMPLE_KEY = "sample"
"""Partition key of the embedded sample dump."""


class Datasets(dg.ConfigurableResource[None]):
    """Paths in the data folder, and settings from environment variables."""

    @property
    def executor(self) -> str:
        """Name of the executor, as on the command line: FIANCHETTO_ENGINE, or `local`."""
        return os.environ.get("FIANCHETTO_ENGINE") or LOCAL

    @property
    def uci_engine(self) -> str:
        """Command of a UCI engine: FIANCHETTO_UCI_ENGINE ("" for none), or stockfish."""
        return os.environ.get("FIANCHETTO_UCI_ENGINE", "stockfish")

    @property
    def fetching(self) -> FetchConfig:
        """Download settings, with the server in FIANCHETTO_LICHESS, or Lichess."""
        return FetchConfig(base=os.environ.get("FIANCHETTO_LICHESS") or LICHESS)

    @property
    def path(self) -> Path:
        """Absolute path of the data folder: FIANCHETTO_DATASETS, or `datasets/` beside the code."""
        return Path(os.environ.get("FIANCHETTO_DATASETS") or SAMPLE_FILE.parents[1]).resolve()

    def dumps(self) -> dict[str, list[Path]]:
        """Return the dump files by partition key; `source` rejects keys with several files."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("dumps/*")):
            if (key := parse_key(path)) and path.is_file():
                found.setdefault(key, []).append(path)
        for path in sorted(self.path.glob(f"{SAMPLE_FILE.parent.name}/*")):
            if parse_key(path):
                found.setdefault(SAMPLE_KEY, []).append(path)
        return found

    def source(self, key: str) -> Path:
        """Return the dump of a partition key. Raises UserError unless there is exactly one file."""
        files = self.dumps().get(key, [])
        if not files:
            month = parse_month(key)
            download = f", or launch the job `first_network` with `games: {month}`" if month else ""
            raise UserError(
                f"there is no dump {key!r}: put {key}.pgn[.zst|.bz2|.gz|.zip] into "
                f"{self.path / 'dumps'}{download}"
            )
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise UserError(f"{names} have the same name {key!r}: rename or remove all but one")
        return files[0]

    def find_positions(
        self, names: tuple[str, ...] = (), expected: Collection[str] = ()
    ) -> list[Path]:
        """Return the folders of complete positions, sorted: those in `names`, or of all dumps.

        Without `names`, the sample is used only if there are no other dumps. `expected` are the
        partitions that Dagster lists as materialized. Raises UserError if any are missing.
        """
        folder = self.path / "positions"
        folders = {name: self.folder("positions", name) for name in sorted(names or expected)}
        missing = [name for name, place in folders.items() if not (place / MANIFEST).is_file()]
        if lost := [name for name in missing if name in expected]:
            raise UserError(
                f"positions of {', '.join(lost)} are materialized but missing in {folder}: "
                f"materialize them again, or wipe their materializations"
            )
        if missing:
            raise UserError(
                f"there are no positions called {', '.join(missing)} in {folder}: "
                "materialize them, or correct the names"
            )
        if names:
            return list(folders.values())
        complete = {path.parent for path in folder.glob(f"*/{MANIFEST}")}
        found = sorted(complete & {folder / name for name in (*self.dumps(), *expected)})
        if not found:
            raise UserError(
                f"{folder} has no complete dataset: materialize `positions`, or name datasets"
            )
        return [path for path in found if path.name != SAMPLE_KEY] or found

    def folder(self, kind: str, name: str) -> Path:
        """Return the folder KIND/NAME of a result: positions, training_sets, checkpoints, tuned.

        Raises UserError unless `name` is a plain folder name.
        """
        if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
            raise UserError(
                f"a name in datasets/{kind} must be a plain folder name without a leading dot, "
                f"got {name!r}"
            )
        return self.path / kind / name

    def imitation(self, player: str) -> Path:
        """Return the folder of a player's network; names with special characters get a hash."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", player)[:60]
        digest = "" if plain == player else f"-{hashlib.sha256(player.encode()).hexdigest()[:8]}"
        return self.folder("checkpoints", f"imitation-{plain}{digest}")


def parse_key(path: Path) -> str | None:
    """Return a dump's partition key (its name without extension); None for other files."""
    key = DUMP_SUFFIX.sub("", path.name)
    plain = key and not key.startswith(".") and "..." not in key and key.isprintable()
    return key if plain and key != path.name else None


def load_lazily() -> Callable[..., dg.Definitions]:
    """Wrap `load` so that Dagster finds it in a module and calls it."""
    return dg.definitions(load)


def load() -> dg.Definitions:
    """Load the definitions in `pipeline/defs/`; all steps of a run share one process."""
    keep_order()
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    # Dagster's default would pickle results of ops into a folder that the run config can set.
    resources = {"datasets": Datasets(), "io_manager": dg.mem_io_manager}
    return dg.Definitions.merge(
        found, dg.Definitions(executor=dg.in_process_executor, resources=resources)
    )
