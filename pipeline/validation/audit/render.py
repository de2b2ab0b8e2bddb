"""An audit as text, as Markdown in the form of the data card, and as a picture."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.dataset.files.shards import publish_json
from pipeline.dataset.training_set import ALL_SPLITS
from pipeline.errors import ConfigError
from pipeline.evaluation.render import publish_bytes, text_table
from pipeline.ingest.data_card import markdown_table
from pipeline.storage.claims import AUDIT, require_own
from pipeline.validation.audit.drift import OTHER, SAME, by_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]
LONGEST = 60
"""Rows of a table in text and Markdown; the JSON file has all."""
DRAWN_STEPS, LABELLED_STEPS, LONGEST_NAME = 120, 6, 18
"""Steps of drift in the picture, steps whose values are written there, and letters of a dataset's name."""
DRAWN = ("rating", "time_control", "ply", "game_length", "result", "pieces")


def sections(result: Mapping[str, Any]) -> list[tuple[str, str, Rows]]:
    """Return the title, sentence and table of each section of an audit, in their order."""
    copies, labels, games, players = (result[name] for name in ("copies", "labels", "games", "players"))
    shared = (
        "Share of the row's positions that occur in the column's dataset, too." if result["between_datasets"] else ""
    )
    found: list[tuple[str, str, Rows]] = [
        ("Datasets", "", result["datasets"]),
        (
            "Copies of positions",
            f"{copies['copies']:,} of {copies['positions']:,} positions ({copies['copies_share']:.2%}) are copies of others; "
            f"{copies['distinct']:,} are distinct. Where a position occurs more than once, its most played move is "
            f"{copies['most_played_move_share_there']:.2%} of the moves played there.",
            result["by_times"],
        ),
        ("Test positions that occur in train", "All positions were compared, by 64-bit keys.", result["in_train"]),
        ("Positions that datasets share", shared, result["between_datasets"]),
        ("Games", _games(games), []),
        ("Players", _players(players), players.get("by_split", [])),
        (
            "Labels",
            f"{labels['used']:,} of 4,096 labels occur, with the entropy of {labels['effective']:,.0f} equally frequent ones; "
            f"the most frequent is {labels['most_frequent_share']:.2%} of all. {labels['not_in_train']:,} never occur in "
            f"train ({labels['positions_with_a_label_not_in_train']:,} positions). {labels['under_promotions']:,} moves are "
            f"under-promotions, which share the label of the queen's; {labels['colliding_moves']:,} moves were played in "
            "positions where the same label was also played with another promotion.",
            [],
        ),
    ]
    found += [(f"By {name.replace('_', ' ')}", "", rows) for name, rows in result["distributions"].items()]
    sentence = (
        "Jensen-Shannon divergence in bits (0: equal, 1: disjoint) by column. PSI, the population stability index, is below "
        f"{SAME} for the same population and above {OTHER} for another."
    )
    found += [
        (f"Drift {words}", sentence, by_step(result["drift"][name], LONGEST))
        for name, words in (
            ("between_splits", "of each split from train"),
            ("between_datasets", "from dataset to dataset"),
            ("between_months", "from month to month"),
        )
        if result["drift"][name]
    ]
    found.append(("Months", "", result["months"]))
    return [(title, sentence, rows) for title, sentence, rows in found if sentence or rows]


def _games(games: Mapping[str, Any]) -> str:
    """Return a sentence on games that occur twice."""
    shared = [f"{games[f'{name}_games_in_train']:,} of {name}" for name in ALL_SPLITS[1:]]
    return (
        f"{games['copies']:,} of {games['games']:,} games have the moves of another. Games whose moves occur in train: "
        f"{', '.join(shared)}."
    )


def _players(players: Mapping[str, Any]) -> str:
    """Return a sentence on players of several splits."""
    if not players["known"]:
        return f"{players['said']}."
    return f"{players['players']:,} players, {players['in_train']:,} of them in train. A game has two seats."


def audit_text(result: Mapping[str, Any]) -> str:
    """Return an audit as text."""
    parts = [
        (title.upper(), sentence, text_table(rows[:LONGEST]) if rows else "")
        for title, sentence, rows in sections(result)
    ]
    return "\n\n".join("\n".join(filter(None, part)) for part in parts)


def audit_markdown(result: Mapping[str, Any]) -> str:
    """Return an audit as Markdown."""
    import polars as pl

    total = result["copies"]["positions"]
    parts = [f"# Audit of {total:,} positions"]
    for title, sentence, rows in sections(result):
        parts += [f"## {title}", *([sentence] if sentence else [])]
        parts += [markdown_table(pl.DataFrame(rows[:LONGEST], infer_schema_length=None))] if rows else []
    return "\n\n".join(parts) + "\n"


def draw_audit(result: Mapping[str, Any]) -> bytes:
    """Return a PNG: shares by bin for each split, occurrences of positions, and drift."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(3, 3)
    for axes, name in zip(panels.flat, DRAWN, strict=False):
        _shares(axes, name.replace("_", " "), result["distributions"][name])
    _bars(panels[2, 0], "positions by number of occurrences", result["by_times"], "times", "share")
    _bars(panels[2, 1], "share of a split that occurs in train", result["in_train"], "split", "in_train_share")
    _drift(panels[2, 2], result["drift"])
    copies = result["copies"]
    names = ", ".join(row["dataset"] for row in result["datasets"])
    figure.suptitle(
        f"{names[:120]}: {copies['positions']:,} positions, {copies['copies_share']:.1%} copies", fontsize=10
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    return drawn.getvalue()


def _shares(axes: "Axes", title: str, rows: Rows) -> None:
    """Draw the share of each bin, a bar for each split."""
    splits = [name for name in ALL_SPLITS if rows and name in rows[0]]
    width = 0.8 / max(len(splits), 1)
    for at, name in enumerate(splits):
        places = [place + (at - (len(splits) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [row[name] for row in rows], width, label=name)
    axes.set_xticks(range(len(rows)), [row["bin"] for row in rows], rotation=35, ha="right", fontsize=7)
    axes.set_title(f"by {title}", fontsize=9)
    if splits:
        axes.legend(fontsize=7)


def _bars(axes: "Axes", title: str, rows: Rows, names: str, values: str) -> None:
    """Draw one value a row."""
    axes.bar(range(len(rows)), [row[values] for row in rows], color="C4")
    axes.set_xticks(range(len(rows)), [row[names] for row in rows], rotation=35, ha="right", fontsize=7)
    axes.set_title(title, fontsize=9)


def _drift(axes: "Axes", drift: Mapping[str, Rows]) -> None:
    """Draw the divergences: between datasets where there are several, else between months, else between splits.

    One step is a bar for each column, several are a map of columns and steps.
    """
    kind = next((name for name in ("between_datasets", "between_months", "between_splits") if drift[name]), None)
    if kind is None:
        axes.set_title("drift", fontsize=9)
        axes.axis("off")
        return
    steps = by_step(drift[kind], DRAWN_STEPS)
    columns = [name for name in steps[0] if name not in ("from", "to", "moved most")]
    title = f"drift {kind.replace('_', ' ')} (bits)"
    if len(steps) == 1:
        (step,) = steps
        known = sorted((step[name], name) for name in columns if step[name] is not None)
        bars = axes.barh([name.replace("_", " ") for _, name in known], [value for value, _ in known], color="C4")
        axes.bar_label(bars, [f"{value:.4f}" for value, _ in known], fontsize=6, padding=2)
        axes.margins(x=0.2)
        axes.set_title(f"{title}\n{_short(step['from'])} to {_short(step['to'])}", fontsize=9)
    else:
        values = [[float("nan") if step[name] is None else step[name] for step in steps] for name in columns]
        axes.imshow(values, aspect="auto", cmap="viridis", vmin=0)
        highest = max((value for row in values for value in row if value == value), default=0.0)
        for line, row in enumerate(values if len(steps) <= LABELLED_STEPS else ()):
            for at, value in enumerate(row):
                ink = "black" if value > highest / 2 else "white"
                axes.text(at, line, f"{value:.3f}", ha="center", va="center", fontsize=6, color=ink)
        axes.set_yticks(range(len(columns)), [name.replace("_", " ") for name in columns])
        shown = range(0, len(steps), max(1, len(steps) // 12))
        axes.set_xticks(list(shown), [_short(steps[at]["to"]) for at in shown], rotation=35, ha="right")
        axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=6)


def _short(name: str) -> str:
    """Return the end of a long name, where the names of datasets differ."""
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Publish `audit.json`, `audit.txt`, `AUDIT.md` and `audit.png` in a directory."""
    require_own(out, AUDIT, ConfigError)
    out.mkdir(parents=True, exist_ok=True)
    publish_json(out, "audit.json", dict(result))  # first: it tells whose the folder is
    for name, content in (
        ("audit.txt", (audit_text(result) + "\n").encode()),
        ("AUDIT.md", audit_markdown(result).encode()),
        ("audit.png", draw_audit(result)),
    ):
        publish_bytes(out, name, content)
