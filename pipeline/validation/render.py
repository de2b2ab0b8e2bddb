"""Write an audit as text and as Markdown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.dataset.dataset import ALL_SPLITS
from pipeline.errors import ConfigError
from pipeline.evaluation.render import publish_result
from pipeline.storage.job_folder import AUDIT, JobFolder
from pipeline.storage.tables import markdown_table, text_table

Rows = list[dict[str, Any]]


def sections(result: Mapping[str, Any]) -> list[tuple[str, str, Rows]]:
    """Return the title, sentence and table of each section of an audit, in their order."""
    copies, games, tests = result["copies"], result["games"], ALL_SPLITS[1:]
    in_train = ", ".join(f"{games[f'{name}_games_in_train']:,} of {name}" for name in tests)
    of_positions = (
        f"{copies['copies']:,} of {copies['positions']:,} positions ({copies['copies_share']:.2%}) "
        f"are copies of others; {copies['distinct']:,} are distinct. Where a position occurs more "
        f"than once, its most played move is {copies['most_played_move_share_there']:.2%} of the "
        "moves played there."
    )
    of_games = (
        f"{games['copies']:,} of {games['games']:,} games have the moves of another. Games whose "
        f"moves occur in train: {in_train}."
    )
    compared = "All positions were compared, by 64-bit keys."
    return [
        ("Datasets", "", result["datasets"]),
        ("Copies of positions", of_positions, []),
        ("Test positions that occur in train", compared, result["in_train"]),
        ("Games", of_games, []),
        *(
            (f"By {name.replace('_', ' ')}", "", rows)
            for name, rows in result["distributions"].items()
        ),
    ]


def audit_text(result: Mapping[str, Any]) -> str:
    """Return an audit as text."""
    parts = [
        (title.upper(), sentence, text_table(rows) if rows else "")
        for title, sentence, rows in sections(result)
    ]
    return "\n\n".join("\n".join(filter(None, part)) for part in parts)


def audit_markdown(result: Mapping[str, Any]) -> str:
    """Return an audit as Markdown."""
    parts = [f"# Audit of {result['copies']['positions']:,} positions"]
    for title, sentence, rows in sections(result):
        table = markdown_table(rows) if rows else ""
        parts += filter(None, (f"## {title}", sentence, table))
    return "\n\n".join(parts) + "\n"


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Publish `audit.json` and `AUDIT.md` in a folder."""
    JobFolder(out, AUDIT, ConfigError).check()
    publish_result(out, AUDIT, "audit.json", result, {"AUDIT.md": audit_markdown(result).encode()})
