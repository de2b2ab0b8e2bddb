"""Encode the dumps of a dataset again with ingest, and compare every row and every game with what is stored.

Files with the same hash are the same. Others are compared column by column, in any order of rows, so that a dataset written by
another version of the Parquet library passes if it says the same.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from engine.json_files import first_error, shown
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import PIECE_COLUMNS
from pipeline.dataset.files.layout import GAMES, MANIFEST
from pipeline.dataset.files.shard_files import open_shard, reading
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import DamagedError, DatasetError, IngestError, Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.stores import opened

if TYPE_CHECKING:
    import polars as pl

Manifest = Mapping[str, Any]
SHOWN = 5
"""Differing rows of a file that are named; the others are counted."""
LONGEST = 500
"""Characters that describe the differences of one row."""


def config_of(manifest: Manifest) -> IngestConfig:
    """Return the settings that a dataset was made with; raises DatasetError if this program has others."""
    stored = manifest["config"]
    strange = sorted(stored.keys() - {field.name for field in fields(IngestConfig)})
    try:
        if strange:
            raise ValueError(f"{shown(strange[0])} is no setting")
        return TypeAdapter(IngestConfig).validate_json(json.dumps(stored), strict=True)
    except ValidationError as error:
        raise DatasetError(f"{MANIFEST}: config.{first_error(error)}: it is damaged, or of another version") from None
    except ValueError as error:
        raise DatasetError(f"the dataset was made with settings that this program does not have: {error}") from error


def compare_all(
    directory: Path,
    manifest: Manifest,
    sources: Sequence[str],
    *,
    workers: int = 0,
    progress: Progress = silent,
    stop: Stop = never,
) -> tuple[int, list[str]]:
    """Ingest the dumps again into a temporary folder (TMPDIR) and compare; return how many rows, and the problems.

    The folder takes as much room as the dataset.
    """
    with tempfile.TemporaryDirectory(prefix="fianchetto-verify-") as name:
        folder = Path(name)
        try:
            again = ingest(sources, folder, config_of(manifest), workers=workers, progress=progress, stop=stop)
        except DamagedError:  # everything before the damage is compared
            again = read_manifest(folder)
        except Stopped as error:
            raise Stopped("stopped; no row was compared") from error
        except IngestError as error:  # its advice is about the temporary folder
            why = str(error).partition(": what was finished")[0]
            raise IngestError(f"the dump could not be encoded again to compare it: {why}") from error
        fresh, stored = ({entry["name"]: entry["sha256"] for entry in it["files"]} for it in (again, manifest))
        problems = [f"{lost}: is not what the dump gives" for lost in sorted(stored.keys() - fresh.keys())]
        problems += [f"{lost}: is missing" for lost in sorted(fresh.keys() - stored.keys())]
        for shared in sorted(stored.keys() & fresh.keys()):
            if stored[shared] != fresh[shared]:
                problems += _differences(shared, directory / shared, folder / shared)
        return again["positions"]["total"], problems


def _differences(name: str, stored: Path, fresh: Path) -> list[str]:
    """Return a line for each difference between two files of the same rows or games."""
    if name == GAMES:
        tables, key, prefix = [_games(stored), _games(fresh)], ["game"], f"{GAMES}: "
    else:
        tables, key, prefix = [_rows(stored), _rows(fresh)], ["game", "ply"], ""
    mine, theirs = tables
    if mine.columns != theirs.columns:
        return [f"{name}: the columns are {', '.join(mine.columns)}"]
    absent, extra = theirs.join(mine, on=key, how="anti"), mine.join(theirs, on=key, how="anti")
    lines = [f"{prefix}{_place(row, key)}: is not stored" for row in absent.head(SHOWN).iter_rows(named=True)]
    lines += [f"{prefix}{_place(row, key)}: is not of the dump" for row in extra.head(SHOWN).iter_rows(named=True)]
    if len(mine) != len(theirs):
        return [*lines, f"{name}: {len(mine)} rows are stored where the dump gives {len(theirs)}"]
    mine, theirs = mine.sort(key), theirs.sort(key)
    differing = [name for name in mine.columns if not mine[name].equals(theirs[name], null_equal=True)]
    rows = sorted(
        {
            row
            for column in differing
            for row, (found, wanted) in enumerate(zip(mine[column], theirs[column], strict=True))
            if found != wanted
        }
    )
    for row in rows[:SHOWN]:
        found, wanted = mine.row(row, named=True), theirs.row(row, named=True)
        words = "; ".join(_difference(it, found[it], wanted[it]) for it in differing if found[it] != wanted[it])
        lines.append(f"{prefix}{_place(found, key)}: {words[:LONGEST]}")
    return lines + ([f"{prefix}and {len(rows) - SHOWN} more differ"] if len(rows) > SHOWN else [])


def _rows(path: Path) -> "pl.DataFrame":
    """Return the rows of a shard."""
    import polars as pl

    with open_shard(path) as reader:
        tables = [reader.table(group) for group in range(len(reader.groups))]
    return pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))


def _games(path: Path) -> "pl.DataFrame":
    """Return a table of games with their numbers."""
    import polars as pl

    with reading(path, "a table of games"), opened(path) as source:
        return pl.read_parquet(source, use_pyarrow=True).with_row_index("game")


def _place(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in key)


def _difference(column: str, found: Any, wanted: Any) -> str:
    """Describe how one value differs."""
    if isinstance(found, bytes) or column in PIECE_COLUMNS:
        return f"{column} differs"
    return f"{column} is {found!r}, not {wanted!r}"
