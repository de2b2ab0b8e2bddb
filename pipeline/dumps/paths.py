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
    by_name = {path.name: path for path in given}
    if len(names) == len(given) == 1:
        by_name = {names[0]: given[0]}
    home = directory.resolve()
    folders = (
        [home, *(home.parent.parent / kind for kind in ("dumps", "sample"))] if not given else []
    )
    found = []
    for name in names:
        bare = Path(name).name == name  # a name with a folder in it is not looked up
        places = (
            [by_name[name]] if name in by_name else [folder / name for folder in folders if bare]
        )
        path = next((place for place in places if given or place.is_file()), None)
        if path is None:
            if given:
                raise DatasetError(f"{directory} was made of {name} too: name that dump as well")
            return None
        require(str(path))
        found.append(str(path))
    return found
