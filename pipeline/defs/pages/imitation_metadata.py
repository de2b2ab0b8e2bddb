"""Metadata of an imitation: its headline, a link to its page, and its figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg

from pipeline.defs.pages.metadata import Metadata, table


def describe_imitation(out: Path, folder: Path, result: Mapping[str, Any]) -> Metadata:
    """Return the metadata of an imitation in `out`; ui.py serves `folder`, that of its report."""
    rows = [
        {
            "network": row["name"],
            "moves": part,
            **{name: value for name, value in row[part].items() if value is not None},
        }
        for part in ("all", "late")
        for row in result["networks"]
        if part in row
    ]
    (imitation,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    return {
        "headline": result["headline"],
        "page": dg.MetadataValue.url(f"/reports/{quote(folder.name)}/report.html"),
        "path": dg.MetadataValue.path(out),
        "dagster/uri": out.as_uri(),
        **{
            name: imitation[name]
            for name in ("top1", "top1_difference", "cross_entropy_difference")
        },
        "games": result["player"]["games"],
        "rating": result["player"]["rating"],
        "networks": table(rows),
    }
