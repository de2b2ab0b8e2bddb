"""One dump, ingested once with each format of planes."""

from pathlib import Path

import pytest

from pipeline.dataset.files.columns import PLANE_FORMATS
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of a dump of 40 random games and of its datasets, by plane format."""
    folder = tmp_path_factory.mktemp("formats")
    dump = datasets.dump(folder / "games.pgn", 40)
    for plane_format in PLANE_FORMATS:
        config = IngestConfig(chunk_mib=1, test_share=0.2, val_share=0.1, planes=plane_format)
        ingest([str(dump)], folder / plane_format, config, workers=1)
    return {"dump": dump} | {plane_format: folder / plane_format for plane_format in PLANE_FORMATS}
