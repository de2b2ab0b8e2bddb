"""An engine of a few lines whose evaluations are known, and short games to judge."""

import sys
from pathlib import Path

ENGINE = """
import sys, chess
board, lines = chess.Board(), 1
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["uci"]:
        print("option name MultiPV type spin default 1 min 1 max 500\\noption name Threads type spin default 1 min 1 max 4")
        print("option name Hash type spin default 1 min 1 max 64\\nuciok")
    elif words[:1] == ["isready"]:
        print("readyok")
    elif words[:3] == ["setoption", "name", "MultiPV"]:
        lines = int(words[-1])
    elif words[:1] == ["position"]:
        board = chess.Board() if words[1] == "startpos" else chess.Board(" ".join(words[2:8]))
        for move in words[words.index("moves") + 1 :] if "moves" in words else []:
            board.push_uci(move)
    elif words[:1] == ["go"]:
        moves = sorted(board.legal_moves, key=lambda move: move.uci())[: MOST]
        for number, move in enumerate(moves[:lines], 1):
            print(f"info depth 9 multipv {number} score cp {-10 * number} nodes 1 pv {move.uci()}")
        print(f"bestmove {moves[0].uci()}")
    elif words[:1] == ["quit"]:
        break
    sys.stdout.flush()
"""
"""An engine to which the first move in the order of its letters is worth -10 centipawns, the next -20, and so on."""

GAMES = "".join(
    f'[Event "{number}"]\n\n1. e4 e5 2. Nf3 Nc6 3. B{square} Nf6 4. O-O Bc5 5. d3 d6 6. c3 O-O 1/2-1/2\n\n'
    for number, square in enumerate(("c4", "b5", "e2"))
)


def engine(folder: Path, most: str = "None") -> tuple[str, str]:
    """Write the engine and give the words that start it."""
    path = folder / f"engine{most}.py"
    path.write_text(ENGINE.replace("MOST", most), encoding="utf-8")
    return sys.executable, str(path)
