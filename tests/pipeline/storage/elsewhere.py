"""The table of pipeline/README.md, "What may lie elsewhere", as command lines: what takes an
address, and what refuses it."""

from pathlib import Path

TRAINING = ["--steps", "1", "--batch-size", "16", "--set", "threads=1"]
INGEST = "--set chunk_mib=1 --set test_share=0.2 --set val_share=0.1 --workers 1"


def taken(store: str, here: Path, dump: str) -> dict[str, list[str]]:
    """Give commands that take addresses, in an order that each finds what it needs: the dump lies
    at `dump`."""
    made, net = f"{store}/made", str(here / "net")
    report = ["report", "--checkpoint", net, "--positions", made, "--out", str(here / "report")]
    return {
        "estimate": ["ingest", dump, "--estimate", "--workers", "1"],
        "ingest": ["ingest", dump, "--out", made, *INGEST.split()],
        "train": ["train", "--positions", made, "--out", str(here / "trained"), *TRAINING],
        "report": report,
    }


def refused(store: str, here: Path) -> dict[str, list[str]]:
    """Give commands that take folders only, each with an address."""
    made, out = f"{store}/made", f"{store}/out"
    net, data = str(here / "net"), str(here / "positions" / "2014.05")
    train = ["train", "--positions", data, *TRAINING, "--out"]
    report = ["report", "--positions", data, "--checkpoint"]
    return {
        "join": ["join", made, "--out", str(here / "out")],
        "join --out": ["join", data, "--out", out],
        "audit": ["audit", made],
        "audit --out": ["audit", data, "--out", out],
        "verify": ["verify", made],
        "train --out": [*train, out],
        "train --start": [*train, str(here / "out"), "--start", f"{store}/net"],
        "report --checkpoint": [*report, f"{store}/net"],
        "report --against": [*report, net, "--against", made],
        "report --out": [*report, net, "--out", out],
        "finetune": ["finetune", "--checkpoint", net, "--out", out, "--generations", "1"],
        "selfplay": ["selfplay", "--checkpoint", net, "--out", out, "--games", "1"],
        "arena": ["arena", "uniform", "hand-written", "--out", out],
        "fetch": ["fetch", "2013-01", "--out", out],
    }
