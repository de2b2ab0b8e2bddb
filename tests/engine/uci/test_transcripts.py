"""Short conversations with the UCI engine, line for line.

`>` is a line to the engine. `<` is a pattern of its next line, and `<<` skips lines up to one that
matches. After each transcript comes `isready`, and the engine may write only `readyok`.
"""

import re
from collections.abc import Iterator

import pytest

from tests.engine.uci.uci_talk import Talk

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/4R1K1 w - - 0 1"
MATE_IN_TWO = "3r2k1/5ppp/8/8/8/8/4R3/4R1K1 w - - 0 1"
LOST_IN_TWO = "3rR1k1/5ppp/8/8/8/8/8/4R1K1 b - - 0 1"
MATED = "R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1"
STALEMATED = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
MOVE = "bestmove [a-h][12][a-h][34].*"
"""A move from the starting position."""
GOES = [
    *(["> go nodes 10"], ["> go wtime 1 btime 1"], ["> go"], ["> go mate 2"]),
    *(["> go infinite", "> stop"], ["> go ponder nodes 5", "> ponderhit", "> stop"]),
]
MISTAKES = {
    "xyzzy": "unknown command 'xyzzy'",
    "position": "position must be startpos or fen",
    "position fen 8/8": "not a FEN: '8/8'",
    "position startpos moves e2e4 e2e4": "illegal move 'e2e4'",
    "setoption": "setoption must be followed by",
    "setoption name Nonsense value 3": "no such option: 'Nonsense'",
    "setoption name MultiPV value 9999": "MultiPV must be between 1 and 218, not '9999'",
    "setoption name UCI_ShowWDL value maybe": "UCI_ShowWDL must be true or false",
    "setoption name Hash value 0": "Hash",
    "setoption name Hash value 1e3": "Hash",
    "setoption name Style value yes": "Style",
    "setoption name UCI_Elo value 99": "UCI_Elo",
    "setoption name CPuct value nan": "CPuct",
    "setoption name Temperature value inf": "Temperature",
    f"setoption name Seed value {'9' * 5000}": "Seed",
    "x" * (3 << 20): "skipped a line of more than 1048576 bytes",
}
TRANSCRIPTS = [
    ["> uci", "< id name Fianchetto.*", "< id author .*", "<< option name UCI_Elo .*", "<< uciok"],
    *(
        [f"> position fen {fen}", *go, f"< info depth 0 score {score}", r"< bestmove \(none\)"]
        for fen, score, goes in ((MATED, "mate 0", GOES), (STALEMATED, "cp 0", GOES[:1]))
        for go in goes
    ),
    *(
        [f"> position fen {fen}", f"> {go}", f"<< info.* score {score} .*", "<< bestmove .*"]
        for fen, score, go in (
            (MATE_IN_ONE, "mate 1", "go nodes 20000"),
            (MATE_IN_TWO, "mate 2", "go nodes 20000"),
            (LOST_IN_TWO, "mate -1", "go nodes 20000"),
            (MATE_IN_TWO, "mate 2", "go mate 2"),
        )
    ),
    *(
        [
            *(f"> {line}", f"< info string {re.escape(problem)}.*"),
            *("> position startpos", "> go nodes 5", "< info depth .*", f"< {MOVE}"),
        ]
        for line, problem in MISTAKES.items()
    ),
    *(
        ["> position startpos", f"> {go}", "<< info .* nodes [01] .*", f"< {MOVE}"]
        for go in ("go mate", "go mate 0", "go mate -3", "go mate x")
    ),
    [
        *("> stop", "> ponderhit", "> stop", "> position startpos", "> go nodes 5"),
        *("< info depth .*", f"< {MOVE}", "> ponderhit", "> stop"),
    ],
    [
        *("> position startpos", "> go nodes 300 searchmoves a2a3 h2h4 e2e5"),
        *("< info string searchmoves: 'e2e5' is not a legal move.*", "<< bestmove (a2a3|h2h4).*"),
    ],
    ["> position startpos", "> go nodes 5 searchmoves e2e5", "< info string .*", f"<< {MOVE}"],
    [
        *("> setoption name MultiPV value 3", "> position startpos", "> go nodes 300"),
        *(f"{'<' * (1 + (place == 1))} info .* multipv {place} .*" for place in (1, 2, 3)),
        *(f"<< {MOVE}", "> setoption name MultiPV value 1"),
    ],
    [  # a search continues in a full tree, and an unreachable depth ends it
        *("> setoption name Hash value 1", "> setoption name Simulations value 4000"),
        *("> position startpos", "> go", "<< info .* nodes 4000 .* hashfull (9..|1000) .*"),
        *(f"<< {MOVE}", "> setoption name Simulations value 0", "> go depth 60", f"<< {MOVE}"),
        "> setoption name Hash value 512",
    ],
]


@pytest.fixture(scope="module")
def long_talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda lines: " ".join(lines)[:60])
def test_transcript(long_talk: Talk, transcript: list[str]) -> None:
    long_talk.say("ucinewgame")
    received: list[str] = []
    for line in transcript:
        kind, _, text = line.partition(" ")
        if kind == ">":
            long_talk.say(text)
            continue
        received += long_talk.until("")
        while kind == "<<" and not re.fullmatch(text, received[-1]):
            received += long_talk.until("")
        assert re.fullmatch(text, received[-1]), received
    assert long_talk.sync() == []


def test_a_line_that_is_not_utf_8_is_an_unknown_command(long_talk: Talk) -> None:
    assert long_talk.complaint(b"\xff\x00\x80").startswith("unknown command")
