"""Find the dumps of a dataset, since the manifest records names and hashes but no paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.dumps.source import require_dump
from pipeline.errors import DatasetError


def find_dumps(
    directory: Path, manifest: Mapping[str, Any], given: Sequence[Path] = ()
) -> list[str] | None:
    """Find the dumps of a dataset, in the manifest's order, among `given` or in Dagster's folders.

    The dump of self-play is in the dataset itself. If a dataset has a single dump, it may have been
    renamed. Returns None if one is not found; raises DatasetError if it is missing from `given`.
    """
    names = [source["name"] for source in manifest["sources"]]
    if given:
        by_name = {path.name: path for path in given}
        if len(names) == len(given) == 1:
            by_name = {names[0]: given[0]}
        if missing := [name for name in names if name not in by_name]:
            raise DatasetError(f"{directory} was also made from {missing[0]}: name that dump too")
        found = [by_name[name] for name in names]
    else:
        home = directory.resolve()
        folders = (home, home.parent.parent / "dumps", home.parent.parent / "sample")
        found = []
        for name in names:
            # the names are untrusted: skip those with a folder in them
            places = [folder / name for folder in folders if Path(name).name == name]
            path = next((place for place in places if place.is_file()), None)
            if path is None:
                return None
            found.append(path)
    for path in found:
        require_dump(str(path))
    return [str(path) for path in found]
