"""The manifest of a dataset, which is published last: a folder without one is not a dataset.

Stability: FORMAT_VERSION, ENCODING_VERSION and `moves_hash()` stand in it; a changed column or bit
is a new version.
"""

from pathlib import Path
from typing import Any

from engine.encoding.planes import ENCODING_VERSION, moves_hash
from engine.json_files import check, read_json, shown
from pipeline.dataset.files.columns import FORMAT_VERSION
from pipeline.dataset.files.layout import LARGEST_MANIFEST, MANIFEST
from pipeline.errors import DatasetError
from pipeline.storage.job_folder import BUILDING


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check a dataset's manifest.

    Raises DatasetError for a folder without one, one that does not fit
    pipeline/dataset/files/schemas.py, or another format or encoding.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise DatasetError(
            f"{directory} is not a directory: a dataset is made by `fianchetto ingest DUMP --out "
            f"DIR`"
        )
    if not path.is_file():
        hint = (
            "an ingest was stopped there: run it again to finish"
            if (directory / BUILDING).is_dir()
            else "no dataset"
        )
        raise DatasetError(f"{directory} has no {MANIFEST} ({hint})")
    manifest = read_json(path, DatasetError, largest=LARGEST_MANIFEST)
    if not isinstance(manifest, dict):
        raise DatasetError(f"{path} is not a manifest of this project")
    versions = {
        "format_version": FORMAT_VERSION,
        "encoding_version": ENCODING_VERSION,
        "moves_hash": moves_hash(),
    }
    for name, ours in versions.items():
        if manifest.get(name) != ours:
            raise DatasetError(
                f"{path} has {name} {shown(manifest.get(name))}, this program {ours!r}",
                remedy="ingest the dump again",
                code="damaged",
            )
    # pydantic, which workers that encode do without
    from pipeline.dataset.files.schemas import Manifest

    check(path, manifest, Manifest, DatasetError, hint=": it is damaged")
    return manifest


def read_note(path: Path) -> dict[str, Any]:
    """Read and check the note of a chunk of an unfinished ingest; raises DatasetError."""
    from pipeline.dataset.files.schemas import ChunkNote

    note = read_json(path, DatasetError)
    hint = f": it is damaged; delete {path.parents[2]} and ingest again"
    check(path, note, ChunkNote, DatasetError, hint=hint)
    return note  # type: ignore[no-any-return]
