"""The data card of a dataset: what is in it, for a person, made by polars from `games.parquet` and the manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.shards import GAMES, publish
from pipeline.stores import opened

if TYPE_CHECKING:
    import polars as pl

CARD = "CARD.md"


def _cell(value: object) -> str:
    """Write one value; what a dump's tags say is anybody's text, so it is cut, and no markup of it passes."""
    text = "" if value is None else f"{value}"
    return "".join(f"&#{ord(char)};" if char in "|<>&[]`*_\\" else char for char in text[:60] if char.isprintable())


def markdown_table(frame: "pl.DataFrame") -> str:
    """Write a frame as a Markdown table."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.rows()]
    return "\n".join(lines)


def _share_by(games: "pl.DataFrame", column: str, rows: int) -> "pl.DataFrame":
    """Count used games by a column, most frequent first."""
    import polars as pl

    counted = games.group_by(column).agg(pl.len().alias("games")).sort("games", column, descending=[True, False])
    return counted.head(rows).with_columns((pl.col("games") * 100 / len(games)).round(1).alias("%"))


def data_card(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Describe a dataset in Markdown: counts, splits, ratings, time controls, lengths, results, and what was dropped."""
    import polars as pl

    games = pl.read_parquet(opened(directory / GAMES))
    used = games.filter(pl.col("dropped").is_null())
    elo = pl.concat([used["white_elo"], used["black_elo"]]).drop_nulls()
    quantiles = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    spread = pl.DataFrame(
        {
            "quantile": quantiles,
            "rating": [None if not len(elo) else int(elo.quantile(q) or 0) for q in quantiles],
            "plies": [int(used["plies"].quantile(q) or 0) for q in quantiles],
        }
    )
    dropped = (
        games.filter(pl.col("dropped").is_not_null())
        .group_by("dropped")
        .agg(
            pl.len().alias("games"),
            pl.col("offset").sort().head(3).cast(pl.String).str.join(", ").alias("first at byte"),
        )
        .sort("games", "dropped", descending=[True, False])
    )
    positions = (
        pl.col("split").replace_strict(manifest["positions"], default=0, return_dtype=pl.Int64).alias("positions")
    )
    splits = used.group_by("split").agg(pl.len().alias("games")).sort("split").with_columns(positions)
    refused = ", ".join(f"{count:,} by {reason}" for reason, count in manifest.get("positions_dropped", {}).items())
    sources = "\n".join(f"- {source['name']}, sha256 `{source['sha256']}`" for source in manifest["sources"])
    copies = manifest["copies"]
    parts = [
        f"# {manifest['positions']['total']:,} positions of {manifest['games']['used']:,} games",
        sources,
        f"Encoding {manifest['encoding_version']} (`{manifest['moves_hash']}`), shard format {manifest['format_version']}. "
        f"Of {manifest['games']['read']:,} games read, {sum(manifest['games']['dropped'].values()):,} were dropped.",
        f"Counted over a {copies['sample_rate']:.4g} share of positions: {copies['duplicate_share']:.2%} are copies, "
        f"{copies['test_in_train_share']:.2%} of the test split and {copies['val_in_train_share']:.2%} of validation stand in "
        f"train too (openings, mostly). {manifest['label_collisions']:,} moves are under-promotions, which share the label of "
        "the queen's.",
        "## Splits, by a hash of each game's moves\n\n" + markdown_table(splits),
        "## Ratings of players, lengths of games\n\n" + markdown_table(spread),
        "## Results (White's)\n\n" + markdown_table(_share_by(used, "result", 3)),
        "## Time controls\n\n" + markdown_table(_share_by(used, "time_control", 12)),
        "## Terminations\n\n" + markdown_table(_share_by(used, "termination", 8)),
        "## Dropped games\n\n" + (markdown_table(dropped) if len(dropped) else "None."),
        *([f"## Dropped positions of used games\n\n{refused}"] if refused else []),
    ]
    return "\n\n".join(parts) + "\n"


def write_card(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Publish the data card beside the manifest."""
    text = data_card(directory, manifest).encode()
    publish(directory, CARD, 0, lambda target: target.write(text))
