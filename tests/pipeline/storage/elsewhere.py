"""The table of pipeline/README.md, "What may lie elsewhere", as command lines: what takes an
address, and what refuses it."""

from pathlib import Path

TRAINING = ["--steps", "1", "--batch-size", "16", "--set", "threads=1"]


def taken(store: str, here: Path, dump: str) -> dict[str, list[str]]:
    """Give commands that take addresses, in an order that each finds what it needs: the dump lies
    at `dump`."""
    made = f"{store}/made"
    settings = [
        "--set",
        "chunk_mib=1",
        "--set",
        "test_share=0.2",
        "--set",
        "val_share=0.1",
        "--workers",
        "1",
    ]
    return {
        "estimate": ["ingest", dump, "--estimate", "--workers", "1"],
        "ingest": ["ingest", dump, "--out", made, *settings],
        "train": ["train", "--positions", made, "--out", str(here / "trained"), *TRAINING],
        "report": [
            "report",
            "--checkpoint",
            str(here / "net"),
            "--positions",
            made,
            "--out",
            str(here / "report"),
        ],
    }


def refused(store: str, here: Path) -> dict[str, list[str]]:
    """Give commands that take folders only, each with an address."""
    made, net, data = f"{store}/made", str(here / "net"), str(here / "positions" / "2014.05")
    return {
        "join": ["join", made, "--out", str(here / "out")],
        "join --out": ["join", data, "--out", f"{store}/out"],
        "audit": ["audit", made],
        "audit --out": ["audit", data, "--out", f"{store}/out"],
        "verify": ["verify", made],
        "train --out": ["train", "--positions", data, "--out", f"{store}/out", *TRAINING],
        "train --start": [
            "train",
            "--positions",
            data,
            "--start",
            f"{store}/net",
            "--out",
            str(here / "out"),
            *TRAINING,
        ],
        "report --checkpoint": ["report", "--checkpoint", f"{store}/net", "--positions", data],
        "report --against": ["report", "--checkpoint", net, "--positions", data, "--against", made],
        "report --out": [
            "report",
            "--checkpoint",
            net,
            "--positions",
            data,
            "--out",
            f"{store}/out",
        ],
        "finetune": [
            "finetune",
            "--checkpoint",
            net,
            "--out",
            f"{store}/out",
            "--generations",
            "1",
        ],
        "selfplay": ["selfplay", "--checkpoint", net, "--out", f"{store}/out", "--games", "1"],
        "arena": ["arena", "uniform", "hand-written", "--out", f"{store}/out"],
        "fetch": ["fetch", "2013-01", "--out", f"{store}/out"],
    }
