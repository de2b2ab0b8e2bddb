"""What a generation's games and the work for them say in figures: the manifest's `selfplay`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DRAW = "1/2-1/2"


def statistics(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum games up; all of it follows from the games, whoever played them when."""
    sums: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    results: Counter[str] = Counter()
    explorers: Counter[str] = Counter()
    for record in records:
        endings[record["ending"]] += 1
        results[record["result"]] += 1
        explorers[record["explorer"]] += 1
        sums.update({name: record[name] for name in ("plies", "full", "quick", "simulations")})
        sums["games"] += 1
        sums["played_on"] += record["given_up"] is not None
        sums["false"] += record["false"]
    games = sums["games"]
    return {
        "games": games,
        "results": dict(sorted(results.items())),
        "decisive_share": round(1.0 - results[DRAW] / max(games, 1), 6),
        "mean_plies": round(sums["plies"] / max(games, 1), 3),
        "endings": dict(sorted(endings.items())),
        "explorers": dict(sorted(explorers.items())),
        "resignations": endings["resignation"],
        "played_on": sums["played_on"],
        "false_resignations": sums["false"],
        "full_moves": sums["full"],
        "quick_moves": sums["quick"],
        "simulations": sums["simulations"],
    }


def text_of(manifest: Mapping[str, Any]) -> str:
    """Write a generation's figures for people."""
    played, took = manifest["selfplay"], manifest["selfplay"]["timing"]
    games = max(played["games"], 1)
    lines = [
        f"{played['games']:,} games, {100 * played['decisive_share']:.1f} % decided, {played['mean_plies']:.1f} half-moves"
        f" long; {manifest['positions']['total']:,} positions, {manifest['positions']['train']:,} of them to train on",
        "endings: " + ", ".join(f"{name} {100 * count / games:.1f} %" for name, count in played["endings"].items()),
        f"{played['played_on']} games played on past a resignation, which would have been wrong in"
        f" {played['false_resignations']}",
        f"{took['seconds']:,.1f} s, {took['games_per_hour']:,.0f} games an hour;"
        f" the evaluator was at work {100 * took['search_efficiency']:.1f} % of the time",
    ]
    return "\n".join(lines)


def timing(work: Sequence[Mapping[str, Any]], games: int, damaged: int) -> dict[str, Any]:
    """Sum the processes' work up: another run of the same games says otherwise.

    `seconds` is while at least one of them played, runs that were stopped or killed included. `search_efficiency` is the
    share of the processes' time in which the evaluator was at work; the rest is the search, and what is kept of the games.
    """
    spans = sorted((each["began"], each["ended"]) for each in work)
    seconds, until = 0.0, 0.0
    for began, ended in spans:
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    playing = sum(each["seconds"] for each in work)
    evaluating = sum(each["evaluator_seconds"] for each in work)
    return {
        "seconds": round(seconds, 3),
        "games_per_hour": round(3600.0 * games / seconds, 1) if seconds else 0.0,
        "process_seconds": round(playing, 3),
        "evaluator_seconds": round(evaluating, 3),
        "search_efficiency": round(evaluating / playing, 4) if playing else 0.0,
        "evaluations": sum(each["evaluations"] for each in work),
        "batches": sum(each["batches"] for each in work),
        "runs": len(work),
        "devices": sorted({device for each in work for device in each["devices"]}),
        "damaged_lines": damaged,
    }
