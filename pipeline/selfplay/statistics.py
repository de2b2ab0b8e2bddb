"""Figures of a generation and of the work for it: the manifest's `selfplay`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.selfplay.journal import Journals
from pipeline.selfplay.records import RESULTS


def count_games(found: Journals) -> dict[str, Any]:
    """Return the figures of a generation's games."""
    endings: Counter[str] = Counter()
    results: Counter[str] = Counter()
    plies = searched = played_on = false = 0
    for place in found.places.values():
        entry = place.read()
        record = entry["record"]
        endings[record["ending"]] += 1
        results[record["result"]] += 1
        plies += len(record["moves"])
        searched += len(entry["searches"])
        played_on += record["resign_ply"] is not None
        false += record["resign_was_wrong"]
    games = len(found.places)
    return {
        "games": games,
        "results": dict(sorted(results.items())),
        "decisive_share": round(1.0 - results[RESULTS[0]] / games, 6),
        "mean_plies": round(plies / games, 3),
        "endings": dict(sorted(endings.items())),
        "resignations": endings["resignation"],
        "played_on": played_on,
        "false_resignations": false,
        "searched": searched,
    }


def count_searches(found: Journals, phases: Mapping[str, int]) -> dict[str, Any]:
    """Return the figures of searched positions, of which so many are of each phase."""
    sums: Counter[str] = Counter()
    for place in found.places.values():
        sums.update(place.read()["record"])
    return {
        "searched": sums["searched"],
        "over": sums["over"],
        "phases": dict(phases),
        "best_move_changed": round(sums["changed"] / max(sums["searched"], 1), 6),
    }


def summarize(manifest: Mapping[str, Any]) -> str:
    """Return a generation's figures as text."""
    found, took = manifest["selfplay"], manifest["selfplay"]["timing"]
    searched, rows = found["searched"], manifest["positions"]
    if "games" in found:
        games = found["games"]
        lines = [
            f"{games:,} games, {100 * found['decisive_share']:.1f} % decided, "
            f"{found['mean_plies']:.1f} half-moves"
            f" long; {rows['total']:,} positions, {rows['train']:,} of them to train on",
            "endings: "
            + ", ".join(
                f"{name} {100 * count / games:.1f} %" for name, count in found["endings"].items()
            ),
            f"{found['played_on']} games played on past a resignation, which would have been wrong "
            f"in"
            f" {found['false_resignations']}",
        ]
    else:
        phases = ", ".join(f"{count:,} {name}" for name, count in found["phases"].items())
        lines = [
            f"{searched:,} positions searched (drawn: {phases})",
            f"the search plays another move than the policy's first in "
            f"{100 * found['best_move_changed']:.1f} %",
        ]
    if "unfinished" in found:
        lines.append(f"{found['unfinished']:,} that were not finished are left out")
    seconds = took["seconds"] or 1.0
    return "\n".join([*lines, f"{took['seconds']:,.1f} s, {searched / seconds:,.1f} searches/s"])


def timing(work: Sequence[Mapping[str, Any]], damaged: int) -> dict[str, Any]:
    """Return the sum of the processes' work, which differs from run to run.

    `seconds` is the time in which at least one process worked, in all runs.
    """
    spans = sorted((each["began"], each["ended"]) for each in work)
    seconds, until = 0.0, 0.0
    for began, ended in spans:
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return {
        "seconds": round(seconds, 3),
        "processes": len(work),
        "devices": sorted({each["device"] for each in work}),
        "damaged_lines": damaged,
    }
