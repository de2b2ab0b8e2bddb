"""Datasets of different months, made of random games, for what joins and audits them."""

from pathlib import Path

from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.datasets import random_game

CONFIG = IngestConfig(chunk_mib=1, test_share=0.25, val_share=0.15)


def month(folder: Path, name: str, seeds: list[int], control: str = "600+5", plies: int = 24) -> Path:
    """Ingest a month's dump of random games, `folder/dumps/NAME.pgn`, into `folder/positions/NAME`."""
    text = "".join(random_game(seed, plies) for seed in seeds).replace("600+5", control)
    text = text.replace('[Result "', f'[UTCDate "{name}.03"]\n[Result "')
    dump = folder / "dumps" / f"{name}.pgn"
    dump.parent.mkdir(parents=True, exist_ok=True)
    dump.write_text(text)
    ingest([str(dump)], folder / "positions" / name, CONFIG, workers=1)
    return folder / "positions" / name
