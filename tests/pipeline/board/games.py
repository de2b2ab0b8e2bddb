"""Games that the tests of the board review."""

SHORT = """[Event "Rated Rapid game"]
[White "A <img src=x onerror=alert(1)>"]
[Black "<script>document.title='stolen'</script>"]
[Result "1-0"]
[WhiteElo "1500"]
[BlackElo "1100"]

1. e4 { [%eval 0.3] } e5 { [%eval 0.3] } 2. Qh5 { [%eval -0.6] } Nc6 { [%eval -0.6] } 3. Bc4
{ [%eval -0.5] } Nf6 { [%eval #1] } 4. Qxf7# 1-0
"""
"""A scholar's mate with evaluations, of players whose names are HTML."""
MATE = 100_000
EVALS = (15, 30, 30, -60, -60, -50, MATE)
"""Evaluations before each move of SHORT, in centipawns of White; a mate is MATE."""
UNSCORED = "1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. Qxf7# 1-0"
"""The same game without evaluations."""

TAGS = '[Event "x"]\n[White "{}"]\n[Black "{}"]\n[Result "{}"]\n[TimeControl "60+0"]\n'
RATED = '[WhiteElo "1500"]\n[BlackElo "1500"]\n[Opening "Open Game: Parham"]\n\n'
HANGS = (
    "1. e4 e5 2. Nf3 Nc6 3. Bc4 Nf6 4. Qe2 Be7 5. O-O O-O 6. Nxe5 Nxe5 7. d3 Qe8 8. Bh6 a6 9. a3"
)
"""White gives a knight for a pawn, and leaves a bishop to a pawn."""
MATED = (
    "1. e4 {[%clk 0:01:00]} e5 {[%clk 0:01:00]} 2. Qh5 {[%clk 0:00:50]} Nc6 {[%clk 0:00:09]} "
    "3. Bc4 {[%clk 0:00:40]} Nf6 {[%clk 0:00:05]} 4. Qxf7# {[%clk 0:00:30]}"
)


def game(moves: str, white: str, black: str, result: str) -> str:
    """Return a game as PGN, with ratings and a time control."""
    return f"{TAGS.format(white, black, result)}{RATED}{moves} {result}\n\n"
