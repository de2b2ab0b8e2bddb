// The user interface of player.js: a board, and one game against the network, without a server.

const HEADER = JSON.parse(document.getElementById("header").textContent);
const NETWORK = readNetwork(HEADER, document.getElementById("weights").textContent);
const START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";
const NAMES = ["pawn", "knight", "bishop", "rook", "queen", "king"];
const find = (id) => document.getElementById(id);
let game, picked = null;

const position = () => game.positions.at(-1);
const keyOf = ({board, black, castling, ep}) => [board, black, castling, ep].join();

function newGame() {
  game = {positions: [readFen(START)], past: [], names: [], black: find("side").value === "black"};
  picked = null;
  show();
  answer();
}

function play(move) {
  const {black} = position(), flip = black ? 56 : 0;
  game.past.push([move.from ^ flip, move.to ^ flip]);
  game.names.push(uci(move, black));
  game.positions.push(push(position(), move));
  picked = null;
  show();
  answer();
}

function result() {
  const now = position(), pieces = [...now.board].filter((piece) => piece && piece < 11);
  const winner = now.black ? "White" : "Black";
  if (!legalMoves(now).length) {
    return isInCheck(now.board) ? `Checkmate: ${winner} wins.` : "Stalemate: a draw.";
  }
  if (now.halfmove >= 100) return "A draw: fifty moves without a capture or a pawn move.";
  const times = game.positions.filter((one) => keyOf(one) === keyOf(now)).length;
  if (times > 2) return "A draw by repetition.";
  const bare = pieces.length === 0 || pieces.length === 1 && [1, 2].includes(pieceType(pieces[0]));
  return bare ? "A draw: neither side can win." : "";
}

function answer() {
  if (result() || position().black === game.black) return;
  const asked = game;
  setTimeout(() => {  // after the board has been drawn
    if (asked !== game) return;
    const likely = policy(NETWORK, position(), game.past, Number(find("rating").value));
    let left = find("likeliest").checked ? 0 : Math.random();
    play((likely.find(({probability}) => (left -= probability) < 0) ?? likely[0]).move);
  }, 50);
}

function choose(square) {
  if (result() || position().black !== game.black) return;
  const moves = legalMoves(position()).filter(({from, to}) => from === picked && to === square);
  const wanted = Number(find("promotion").value);
  if (moves.length) return play(moves.find(({promotion}) => promotion === wanted) ?? moves[0]);
  picked = position().board[square] % 2 ? square : null;
  show();
}

function show() {
  const now = position(), turned = now.black !== game.black;  // the board is in the mover's view
  const last = game.past.at(-1) ?? [];
  const aims = legalMoves(now).filter((move) => move.from === picked);
  const focused = document.activeElement?.dataset.square;
  find("board").replaceChildren(...Array.from({length: 64}, (_, place) => {
    const at = place ^ (turned ? 56 : 0) ^ (game.black ? 7 : 0), piece = now.board[at];
    const button = document.createElement("button");
    const isWhite = piece && Boolean(side(piece)) === now.black;
    const name = nameSquare(at, now.black);
    button.textContent = piece ? "♟♞♝♜♛♚"[pieceType(piece)] + "\uFE0E" : "";
    const what = piece ? `, ${isWhite ? "white" : "black"} ${NAMES[pieceType(piece)]}` : "";
    button.ariaLabel = name + what;
    button.className = [(place + (place >> 3)) % 2 ? "dark" : "light", isWhite ? "white" : "black",
      last.includes(at ^ (now.black ? 56 : 0)) ? "last" : "", at === picked ? "picked" : "",
      aims.some(({to}) => to === at) ? "target" : ""].join(" ");
    button.dataset.square = name;
    button.onclick = () => choose(at);
    return button;
  }));
  if (focused) find("board").querySelector(`[data-square=${focused}]`).focus();
  const turn = now.black === game.black ? "Your move." : "The network thinks.";
  find("status").textContent = result() || (isInCheck(now.board) ? `Check. ${turn}` : turn);
  find("moves").textContent = game.names.join(" ");
}

find("name").textContent = HEADER.name;
find("rating").value = HEADER.rating;
find("new").onclick = newGame;
newGame();
