"""One dump in both forms of planes, made once."""

from pathlib import Path

import pytest

from pipeline.dataset.files.columns import PLANE_FORMATS
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the path of the dump, 40 random games, and of its dataset in each form."""
    folder = tmp_path_factory.mktemp("forms")
    dump = datasets.dump(folder / "games.pgn", 40)
    for form in PLANE_FORMATS:
        config = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1, planes=form)
        ingest([str(dump)], folder / form, config, workers=1)
    return {"dump": dump} | {form: folder / form for form in PLANE_FORMATS}
