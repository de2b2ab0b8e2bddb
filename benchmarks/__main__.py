"""`python -m benchmarks WHAT`: measure the speed of this machine."""

from pathlib import Path
from typing import Any

import click

from benchmarks import batches, ingest, scale, search
from pipeline.ingest.chunk import IngestConfig
from pipeline.samples.shipped import SAMPLE_DUMP
from pipeline.storage.tables import format_plain_text, format_text_table


@click.command(context_settings={"show_default": True})
@click.argument("what", type=click.Choice(["ingest", "batches", "search", "scale"]))
@click.option(
    "--pgn",
    type=click.Path(exists=True, path_type=Path),
    default=SAMPLE_DUMP,
    help="PGN dump to read.",
)
@click.option(
    "--planes",
    type=click.Choice(["all", "compact"]),
    default="all",
    help="How ingest stores positions: all 77 planes, or compact, which takes less space.",
)
@click.option(
    "--history",
    type=click.IntRange(1, 8),
    default=8,
    help="Number of previous half-moves that ingest stores in each row.",
)
@click.option("--largest", default=1_000_000_000, help="Bytes of the long stream of `scale`.")
def main(what: str, pgn: Path, planes: Any, history: int, largest: int) -> None:
    """Measure the speed of `ingest`, `batches` or `search`, or the memory of ingest (`scale`)."""
    config = IngestConfig(planes=planes, history=history)
    match what:
        case "ingest":
            result = ingest.measure(pgn, config)
        case "batches":
            result = batches.measure(pgn)
        case "search":
            result = search.measure()
        case _:
            result = scale.measure(pgn, config, largest)
    values = {name: value for name, value in result.items() if not isinstance(value, list)}
    print(format_plain_text(values))  # noqa: T201
    for rows in (value for value in result.values() if isinstance(value, list)):
        print(f"\n{format_text_table(rows)}")  # noqa: T201


if __name__ == "__main__":
    main()
