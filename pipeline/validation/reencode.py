"""Encode the dumps of a dataset again with ingest, and compare every row and every game with what is stored.

Files with the same hash are the same. Others are compared column by column, in any order of rows, so that a dataset written by
another version of the Parquet library passes if its content is the same.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from engine.json_files import first_error, shown
from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.files.columns import MOVE_COLUMNS, PIECE_COLUMNS
from pipeline.dataset.files.layout import GAMES, MANIFEST
from pipeline.dataset.files.shard_files import reading
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import DamagedError, DatasetError, IngestError, Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.storage.stores import open_for_arrow

if TYPE_CHECKING:
    import polars as pl

Manifest = Mapping[str, Any]
SHOWN = 5
"""Differing rows of a column that are named; the others are counted."""
LONGEST = 500
"""Characters that describe a difference."""


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
    key, prefix = (["game"], f"{GAMES}: ") if name == GAMES else (["game", "ply"], "")
    mine, theirs = _read(stored), _read(fresh)
    if mine.columns != theirs.columns:
        return [f"{name}: the columns are {', '.join(mine.columns)}"]
    absent, extra = theirs.join(mine, on=key, how="anti"), mine.join(theirs, on=key, how="anti")
    lines = [f"{prefix}{_place(row, key)}: is not stored" for row in absent.head(SHOWN).iter_rows(named=True)]
    lines += [f"{prefix}{_place(row, key)}: is not of the dump" for row in extra.head(SHOWN).iter_rows(named=True)]
    if len(mine) != len(theirs):
        return [*lines, f"{name}: {len(mine)} rows are stored where the dump gives {len(theirs)}"]
    mine, theirs = mine.sort(key), theirs.sort(key)
    for column in mine.columns:
        if mine[column].equals(theirs[column], null_equal=True):
            continue
        both = zip(mine[column], theirs[column], strict=True)
        rows = [(row, found, wanted) for row, (found, wanted) in enumerate(both) if found != wanted]
        is_picture = column in PIECE_COLUMNS or column in MOVE_COLUMNS
        for row, found, wanted in rows[:SHOWN]:
            said = "differs" if is_picture else f"is {found!r}, not {wanted!r}"
            lines.append(f"{prefix}{_place(mine.row(row, named=True), key)}: {column} {said[:LONGEST]}")
        if len(rows) > SHOWN:
            lines.append(f"{prefix}{column} of {len(rows) - SHOWN} more differs")
    return lines


def _read(path: Path) -> "pl.DataFrame":
    """Return the rows of a shard, or a table of games with their numbers."""
    import polars as pl

    with reading(path), open_for_arrow(path) as source:
        frame = pl.read_parquet(source, use_pyarrow=True)
    return frame.with_row_index("game") if path.name == GAMES else frame


def _place(row: Mapping[str, Any], key: Sequence[str]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in key)
