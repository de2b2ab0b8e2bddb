"""Find the dumps that a dataset was made of: the manifest records names and hashes, not paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.dumps.source import require
from pipeline.errors import DatasetError


def dumps_of(
    directory: Path, manifest: Mapping[str, Any], given: Sequence[Path] = ()
) -> list[str] | None:
    """Find the dumps that a dataset was made of, in the manifest's order: among those given, or
    where Dagster has them.

    Self-play keeps its games in the dataset itself. A dataset's only dump may have been renamed.
    Returns None where one is not found; raises DatasetError where dumps were given and one of the
    dataset is not among them.
    """
    names = [source["name"] for source in manifest["sources"]]
    if given:
        by_name = {path.name: path for path in given}
        if len(names) == len(given) == 1:
            by_name = {names[0]: given[0]}
        if missing := [name for name in names if name not in by_name]:
            raise DatasetError(f"{directory} was made of {missing[0]} too: name that dump as well")
        found = [by_name[name] for name in names]
    else:
        home = directory.resolve()
        folders = (home, home.parent.parent / "dumps", home.parent.parent / "sample")
        found = []
        for name in names:
            # a name with a folder in it is not looked up
            places = [folder / name for folder in folders if Path(name).name == name]
            path = next((place for place in places if place.is_file()), None)
            if path is None:
                return None
            found.append(path)
    for path in found:
        require(str(path))
    return [str(path) for path in found]
