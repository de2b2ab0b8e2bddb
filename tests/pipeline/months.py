"""Make datasets of different months from random games, to be joined and audited."""

from pathlib import Path

from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline.datasets import random_game

CONFIG = IngestConfig(chunk_mib=1, test_share=0.25, val_share=0.15)


def month(
    folder: Path,
    name: str,
    seeds: list[int],
    control: str = "600+5",
    plies: int = 24,
    days: int = 1,
    config: IngestConfig = CONFIG,
) -> Path:
    """Ingest a month's dump of random games, `folder/dumps/NAME.pgn`, into `folder/positions/NAME`.

    The dates of the games cycle through `days` days from the third on; with 0, games have no date.
    """
    texts = [random_game(seed, plies).replace("600+5", control) for seed in seeds]
    for index, text in enumerate(texts if days else ()):
        texts[index] = text.replace(
            '[Result "', f'[UTCDate "{name}.{3 + index % days:02}"]\n[Result "'
        )
    dump = folder / "dumps" / f"{name}.pgn"
    dump.parent.mkdir(parents=True, exist_ok=True)
    dump.write_text("".join(texts))
    ingest([str(dump)], folder / "positions" / name, config, workers=1)
    return folder / "positions" / name
