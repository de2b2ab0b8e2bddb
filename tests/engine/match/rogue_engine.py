"""UCI engine that plays the first legal move, or misbehaves: `python rogue_engine.py HOW [FOLDER]`.

a1a1        always plays a1a1
nothing     answers `bestmove (none)`
late-crash  exits when it should play its third move
hang        never answers a `go`
mute        never answers at all
log         plays, and writes the lines that it receives to FOLDER/received
fair        plays
"""

import sys
from pathlib import Path

import chess


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    how, board, goes = sys.argv[1], chess.Board(), 0
    for line in sys.stdin:
        words = line.split()
        if how == "log":
            with Path(sys.argv[2], "received").open("a") as file:
                file.write(line)
        if how == "mute" or not words:
            continue
        if words[0] == "uci":
            say("id name Rogue\noption name Manners type spin default 1 min 0 max 9\nuciok")
        elif words[0] == "isready":
            say("readyok")
        elif words[0] == "position":
            start = words.index("moves") if "moves" in words else len(words)
            fen = chess.STARTING_FEN if words[1] == "startpos" else " ".join(words[2:start])
            board = chess.Board(fen)
            for move in words[start + 1 :]:
                board.push_uci(move)
        elif words[0] == "go":
            goes += 1
            if how == "late-crash" and goes == 3:
                sys.exit(3)
            if how == "hang":
                continue
            first = next(iter(board.legal_moves)).uci()
            answer = {"a1a1": "a1a1", "nothing": "(none)"}.get(how, first)
            say(f"info depth 1 score cp 13\nbestmove {answer}")
        elif words[0] == "quit":
            return


if __name__ == "__main__":
    main()
