"""The data folder, settings from environment variables, and all Dagster definitions.

The data folder, executor, download server and chess engine are not part of a run's configuration,
so a person who may launch runs cannot choose a program, server or folder.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.files.columns import MANIFEST
from pipeline.defs.launchpad.forms import keep_field_order
from pipeline.dumps.fetch import LICHESS, FetchConfig, parse_month
from pipeline.executors.local import LOCAL
from pipeline.samples.shipped import SAMPLE_DUMP as SAMPLE_FILE

DUMP_SUFFIX = re.compile(r"\.pgn(\.zst|\.bz2|\.gz|\.zip)?$")
"""End of the names of files that are dumps."""
SAMPLE_KEY = "sample"
"""Partition key of the embedded sample dump."""


class DataFolder(dg.ConfigurableResource[None]):
    """Paths of the data folder's files, and settings from environment variables."""

    @property
    def executor(self) -> str:
        """Name of the executor, as on the command line: FIANCHETTO_ENGINE, or `local`."""
        return os.environ.get("FIANCHETTO_ENGINE") or LOCAL

    @property
    def uci_engine(self) -> str:
        """Command of a UCI engine: FIANCHETTO_UCI_ENGINE ("" for no engine), or stockfish."""
        return os.environ.get("FIANCHETTO_UCI_ENGINE", "stockfish")

    @property
    def fetch_config(self) -> FetchConfig:
        """Download settings; the server is FIANCHETTO_LICHESS, or Lichess."""
        return FetchConfig(base=os.environ.get("FIANCHETTO_LICHESS") or LICHESS)

    @property
    def path(self) -> Path:
        """Absolute path of the data folder: FIANCHETTO_DATASETS, or `datasets/` beside the code."""
        return Path(os.environ.get("FIANCHETTO_DATASETS") or SAMPLE_FILE.parents[1]).resolve()

    def list_dumps(self) -> dict[str, list[Path]]:
        """Return the dump files by partition key; `find_dump` rejects keys with several files."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.path.glob("dumps/*")):
            if (key := parse_dump_key(path)) and path.is_file():
                found.setdefault(key, []).append(path)
        for path in sorted(self.path.glob(f"{SAMPLE_FILE.parent.name}/*")):
            if parse_dump_key(path):
                found.setdefault(SAMPLE_KEY, []).append(path)
        return found

    def find_dump(self, key: str) -> Path:
        """Return the dump of a partition. Raises UserError unless there is exactly one file."""
        files = self.list_dumps().get(key, [])
        if not files:
            month = parse_month(key)
            hint = f", or launch the job `first_network` with `games: {month}`" if month else ""
            raise UserError(
                f"there is no dump {key!r}: put {key}.pgn[.zst|.bz2|.gz|.zip] into "
                f"{self.path / 'dumps'}{hint}"
            )
        if len(files) > 1:
            names = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise UserError(
                f"{names} belong to the same partition {key!r}: rename or remove all but one"
            )
        return files[0]

    def find_positions(
        self, names: tuple[str, ...] = (), expected: Collection[str] = ()
    ) -> list[Path]:
        """Return the sorted folders of complete positions: those in `names`, or those of all dumps.

        Without `names`, the sample is used only if there are no other dumps. `expected` are the
        partitions that Dagster lists as materialized. Raises UserError if any or all are missing.
        """
        folder = self.path / "positions"
        folders = {
            name: self.result_folder("positions", name) for name in sorted(names or expected)
        }
        missing = [name for name, path in folders.items() if not (path / MANIFEST).is_file()]
        if deleted := [name for name in missing if name in expected]:
            raise UserError(
                f"positions of {', '.join(deleted)} are materialized but missing in {folder}: "
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
        found = sorted(complete & {folder / name for name in (*self.list_dumps(), *expected)})
        if not found:
            raise UserError(
                f"{folder} has no complete dataset of a known dump: materialize `positions`, or "
                "list the datasets to use in the launchpad"
            )
        return [path for path in found if path.name != SAMPLE_KEY] or found

    def result_folder(self, kind: str, name: str) -> Path:
        """Return the folder KIND/NAME, where `kind` is positions, training_sets and so on.

        Raises UserError unless `name` is a plain folder name.
        """
        if not name or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
            raise UserError(
                f"a name in datasets/{kind} must be a plain folder name (no slash, no leading "
                f"dot), got {name!r}"
            )
        return self.path / kind / name

    def imitation_folder(self, player: str) -> Path:
        """Return the folder of a player's network, with a hash if the name had to be changed."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", player)[:60]
        digest = "" if plain == player else f"-{hashlib.sha256(player.encode()).hexdigest()[:8]}"
        return self.result_folder("checkpoints", f"imitation-{plain}{digest}")


def parse_dump_key(path: Path) -> str | None:
    """Return a dump's partition key (its name without the suffix); None for any other file."""
    key = DUMP_SUFFIX.sub("", path.name)
    is_valid = key and not key.startswith(".") and "..." not in key and key.isprintable()
    return key if is_valid and key != path.name else None


def load_lazily() -> Callable[..., dg.Definitions]:
    """Wrap `load_definitions` so that Dagster finds it in a module and calls it."""
    return dg.definitions(load_definitions)


def load_definitions() -> dg.Definitions:
    """Load the definitions in `pipeline/defs/`, with an executor for all steps in one process."""
    keep_field_order()
    found = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    # Dagster's default I/O manager would pickle outputs into a folder that a run can choose.
    resources = {"datasets": DataFolder(), "io_manager": dg.mem_io_manager}
    return dg.Definitions.merge(
        found, dg.Definitions(executor=dg.in_process_executor, resources=resources)
    )
