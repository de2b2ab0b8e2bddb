// Chess rules, inputs and forward pass of an exported network. It uses no DOM, so that tests can
// call its functions.
//
// A board is 64 numbers in the mover's view, in which square 0 is a8 for White and a1 for Black. 0
// is an empty square and 1 + p the piece of plane p: 1 is an own pawn, 2 an opponent's pawn, 3 an
// own knight, and 12 the opponent's king. A position is {board, black, castling: [own K, own Q,
// opponent's K, Q], ep, halfmove}. A move is {from, to, kind, promotion}: promotion is 0 for none
// and 1 to 4 for knight to queen; kind is a type of move of engine/encoding/planes.py.

const DIRECTIONS = [[0, 1], [1, 1], [1, 0], [1, -1], [0, -1], [-1, -1], [-1, 0], [-1, 1]];
const KNIGHT_STEPS = [[1, 2], [2, 1], [2, -1], [1, -2], [-1, -2], [-2, -1], [-2, 1], [-1, 2]];
const PIECE_VALUES = [100, 320, 330, 500, 950, 0];  // in centipawns, by pieceType
const STEPS = [1, 2, 3, 4, 5, 6, 7].flatMap((n) => DIRECTIONS.map(([x, y]) => [x * n, y * n]));
STEPS.push(...KNIGHT_STEPS);

function stepFrom(square, [file, rank]) {
  const col = square % 8 + file, row = (square >> 3) - rank;
  return col >= 0 && col < 8 && row >= 0 && row < 8 ? row * 8 + col : -1;
}
const RAYS = Array.from({length: 64}, (_, square) => DIRECTIONS.map((step) => {
  const ray = [];
  for (let at = stepFrom(square, step); at >= 0; at = stepFrom(at, step)) ray.push(at);
  return ray;
}));
const JUMPS = Array.from({length: 64}, (_, square) =>
  KNIGHT_STEPS.map((step) => stepFrom(square, step)).filter((at) => at >= 0));
const KIND = new Map();  // from * 64 + to -> kind
for (let from = 0; from < 64; from++) STEPS.forEach((step, kind) => {
  if (stepFrom(from, step) >= 0) KIND.set(from * 64 + stepFrom(from, step), kind);
});

const side = (piece) => (piece - 1) % 2;  // 0 mover, 1 opponent
const pieceType = (piece) => (piece - 1) >> 1;  // 0 pawn .. 5 king
const pawnRays = (who) => who ? [3, 5] : [1, 7];

function readFen(fen) {
  const [rows, turn, rights, ep, halfmove] = fen.split(" "), black = turn === "b";
  const flip = black ? 56 : 0, board = new Int8Array(64);
  let square = 0;
  for (const char of rows.replaceAll("/", "")) {
    if (/\d/.test(char)) { square += Number(char); continue; }
    const isBlack = char === char.toLowerCase();
    board[square++ ^ flip] = 1 + 2 * "pnbrqk".indexOf(char.toLowerCase()) + (isBlack !== black);
  }
  const castling = (black ? "kqKQ" : "KQkq").split("").map((right) => rights.includes(right));
  return {board, black, castling, ep: ep === "-" ? -1 : parseSquare(ep) ^ (black ? 0 : 56),
    halfmove: Number(halfmove || 0)};
}
const parseSquare = (name) => name.charCodeAt(0) - 97 + 8 * (name.charCodeAt(1) - 49);
const nameSquare = (square, black) => {
  const at = square ^ (black ? 0 : 56);
  return "abcdefgh"[at % 8] + (1 + (at >> 3));
};
const uci = ({from, to, promotion}, black) =>
  nameSquare(from, black) + nameSquare(to, black) + (promotion ? "nbrq"[promotion - 1] : "");

// Return the squares that the piece on a square attacks.
function attacksFrom(board, square) {
  const piece = board[square], kind = pieceType(piece);
  if (kind === 1) return JUMPS[square];
  const rays = kind === 0 ? pawnRays(side(piece)) : kind === 2 ? [1, 3, 5, 7]
    : kind === 3 ? [0, 2, 4, 6] : [0, 1, 2, 3, 4, 5, 6, 7];
  const found = [];
  for (const index of rays) for (const at of RAYS[square][index]) {
    found.push(at);
    if (board[at] || kind === 0 || kind === 5) break;
  }
  return found;
}

// Return the square of a side's least valuable attacker, the lowest of several; -1 for none.
function leastAttacker(board, square, who) {
  let best = 1 << 10;
  const consider = (at) => { best = Math.min(best, pieceType(board[at]) * 64 + at); };
  for (const at of JUMPS[square]) if (board[at] === 3 + who) consider(at);
  for (let index = 0; index < 8; index++) {
    const ray = RAYS[square][index], far = ray.find((at) => board[at]);
    if (far === undefined || side(board[far]) !== who) continue;
    const kind = pieceType(board[far]), near = far === ray[0];
    if (kind === 4 || kind === 2 + (index + 1) % 2 || near && (kind === 5 ||
        kind === 0 && pawnRays(1 - who).includes(index))) consider(far);
  }
  return best < 1 << 10 ? best % 64 : -1;
}

function isInCheck(board, who = 0) {
  return leastAttacker(board, board.indexOf(11 + who), 1 - who) >= 0;
}

const otherSide = (piece) => piece && piece + 1 - 2 * side(piece);

function push(position, {from, to, promotion}) {
  const board = position.board.slice(), piece = board[from], step = to - from;
  if (piece === 1 && to === position.ep) board[to + 8] = 0;
  if (piece === 11 && Math.abs(step) === 2) {
    const corner = step > 0 ? 63 : 56;
    board[corner] = 0; board[(from + to) / 2] = 7;
  }
  const quiet = piece !== 1 && !board[to];
  board[from] = 0;
  board[to] = promotion ? 1 + 2 * promotion : piece;
  const keeps = (king, rook) => ![from, to].some((at) => at === king || at === rook);
  const [k, q, K, Q] = position.castling;
  return {
    board: Int8Array.from(board, (_, at) => otherSide(board[at ^ 56])),
    black: !position.black,
    castling: [K && keeps(4, 7), Q && keeps(4, 0), k && keeps(60, 63), q && keeps(60, 56)],
    ep: piece === 1 && step === -16 ? (from - 8) ^ 56 : -1,
    halfmove: quiet ? position.halfmove + 1 : 0,
  };
}

function legalMoves(position) {
  const {board, castling, ep} = position, moves = [];
  const add = (from, to) => {
    const promotions = board[from] === 1 && to < 8 ? [4, 3, 2, 1] : [0];
    const kind = KIND.get(from * 64 + to);
    for (const promotion of promotions) moves.push({from, to, promotion, kind});
  };
  for (let from = 0; from < 64; from++) {
    if (!board[from] || side(board[from])) continue;
    const isPawn = board[from] === 1;
    for (const to of attacksFrom(board, from)) {
      const taken = board[to] ? side(board[to]) === 1 : !isPawn || to === ep;
      if (taken) add(from, to);
    }
    if (isPawn && !board[from - 8]) {
      add(from, from - 8);
      if (from >= 48 && !board[from - 16]) add(from, from - 16);
    }
  }
  const free = (...squares) => squares.every((at) => !board[at]);
  const safe = (...squares) => squares.every((at) => leastAttacker(board, at, 1) < 0);
  if (castling[0] && free(61, 62) && safe(60, 61)) add(60, 62);
  if (castling[1] && free(57, 58, 59) && safe(60, 59)) add(60, 58);
  return moves.filter((move) => !isInCheck(push(position, move).board, 1));
}

// Return what a side gains that captures first on a square (engine/evaluation/static_exchange.py).
function exchange(start, square, victim, who) {
  const board = start.slice(), gains = [];
  for (let standing = victim; gains.length < 32; who = 1 - who) {
    const at = leastAttacker(board, square, who);
    if (at < 0) break;
    const isKing = pieceType(board[at]) === 5;
    if (isKing && leastAttacker(board, square, 1 - who) >= 0) break;
    gains.push(standing - (gains.at(-1) ?? 0));
    standing = PIECE_VALUES[pieceType(board[at])];
    board[at] = 0;
    if (isKing) break;
  }
  for (let n = gains.length - 1; n > 0; n--) gains[n - 1] = Math.min(gains[n - 1], -gains[n]);
  return Math.max(gains[0] ?? 0, 0);
}

// Return the largest and second largest gain of a side from captures, in centipawns.
function bestExchanges(board, who, excluded = -1) {
  let most = 0, second = 0;
  for (let at = 0; at < 64; at++) {
    const kind = pieceType(board[at]);
    if (!board[at] || side(board[at]) === who || kind === 5 || at === excluded) continue;
    const won = exchange(board, at, PIECE_VALUES[kind], who);
    if (won > most) [most, second] = [won, most]; else if (won > second) second = won;
  }
  return [most, second];
}

// Return the features of a move in tens of centipawns (engine/evaluation/move_features.py).
function moveFeatures(position, move, stands) {
  const piece = position.board[move.from], child = push(position, move), {board} = child;
  const target = move.to ^ 56;
  const taken = piece === 1 && move.to === position.ep ? 1 : position.board[move.to];
  const promoted = move.promotion ? PIECE_VALUES[4] - PIECE_VALUES[0] : 0;
  const takes = (taken ? PIECE_VALUES[pieceType(taken)] : 0) + promoted;
  const risks = exchange(board, target, PIECE_VALUES[pieceType(board[target])], 0);
  const check = isInCheck(board) ? (legalMoves(child).length ? 1 : 2) : 0;
  const values = [takes, risks, ...bestExchanges(board, 0, target), ...bestExchanges(board, 1)];
  return [...values, stands].map((value) => Math.min(Math.floor(value / 10), 255)).concat(check);
}

function encodeFeatures(features) {
  const [takes, risks, leaves, , , , stands, check] = features, amounts = features.slice(0, 7);
  const flags = [takes > risks, takes < risks, leaves < stands, check > 0, check > 1];
  return Float32Array.from([...amounts.map((x) => x / 50), ...amounts.map((x) => x > 0),
    ...amounts.map((x) => x >= 30), ...flags], Number);
}

// Return the planes of the view marro13+last8+attacks: P numbers for each of 64 squares. `past`
// has the moves of the game as [from, to] in White's view, the latest last.
function drawPlanes(position, past) {
  const P = 13 + 16 + 12, x = new Float32Array(64 * P);
  for (let at = 0; at < 64; at++) {
    const piece = position.board[at];
    x[at * P + 12] = Number(position.black);
    if (!piece) continue;
    x[at * P + piece - 1] = 1;
    for (const to of attacksFrom(position.board, at)) x[to * P + P - 13 + piece] = 1;
  }
  past.slice(-8).reverse().forEach((squares, back) => squares.forEach((square, end) => {
    x[(square ^ (position.black ? 56 : 0)) * P + 13 + 2 * back + end] = 1;
  }));
  return x;
}

// Add the product of x[at..] and w to out[to..]; w has the shape [inputs, outputs].
function addProduct(x, at, w, out, to, first = 0) {
  const [inputs, outputs] = w.shape.slice(-2);
  for (let i = 0; i < inputs; i++) {
    const value = x[at + i];
    if (value === 0) continue;
    const row = (first + i) * outputs;
    for (let j = 0; j < outputs; j++) out[to + j] += value * w.data[row + j];
  }
}
const linear = (x, w, bias) => {
  const out = bias ? bias.data.slice() : new Float32Array(w.shape.at(-1));
  addProduct(x, 0, w, out, 0);
  return out;
};
const relu = (x) => { for (let i = 0; i < x.length; i++) if (x[i] < 0) x[i] = 0; return x; };
const dot = (x, w) => x.reduce((sum, value, i) => sum + value * w.data[i], 0);

function convolve(x, w, bias) {
  const [, inputs, outputs] = w.shape, out = new Float32Array(64 * outputs);
  for (let at = 0; at < 64; at++) {
    out.set(bias.data, at * outputs);
    for (let tap = 0; tap < 9; tap++) {
      const from = stepFrom(at, [tap % 3 - 1, 1 - Math.floor(tap / 3)]);
      if (from >= 0) addProduct(x, from * inputs, w, out, at * outputs, tap * inputs);
    }
  }
  return out;
}

// Return interpolation weights of the steps 600, 750 ... 3000, and one entry for unknown.
function encodeRating(rating) {
  const place = Math.min(Math.max((rating - 600) / 150, 0), 16);
  const shares = Array.from({length: 17}, (_, n) => Math.max(0, 1 - Math.abs(place - n)));
  return rating ? [...shares, 0] : [...shares.fill(0), 1];
}

// Return [{move, probability}] of the legal moves, likeliest first; promotions are to a queen.
function policy({config, tensors: t}, position, past, rating) {
  const C = config.width;
  const moves = legalMoves(position).filter(({promotion}) => !promotion || promotion === 4);
  const stands = bestExchanges(position.board, 1)[0];
  const features = moves.map((move) => encodeFeatures(moveFeatures(position, move, stands)));
  let x = relu(convolve(drawPlanes(position, past), t["stem.w"], t["stem.b"]));
  features.forEach((row, index) => {
    const {from, to, kind} = moves[index], added = linear(row, t["added.w"], t["added.b"]);
    for (let c = 0; c < 2 * C; c++) added[c] += t["added.kinds"].data[kind * 2 * C + c];
    relu(added);
    for (let c = 0; c < C; c++) { x[from * C + c] += added[c]; x[to * C + c] += added[C + c]; }
  });
  const shares = Float32Array.from([...encodeRating(rating), ...encodeRating(rating)]);
  const hidden = relu(linear(shares, t["film0.w"], t["film0.b"]));
  const films = linear(hidden, t["film1.w"], t["film1.b"]);
  const film = (first) => x.forEach((value, i) => {
    x[i] += films[(first + 1) * C + i % C] + value * films[first * C + i % C];
  });
  film(0);
  for (let block = 0; block < config.blocks; block++) {
    let y = relu(convolve(x, t[`${block}.w1`], t[`${block}.b1`]));
    y = convolve(y, t[`${block}.w2`], t[`${block}.b2`]);
    for (let i = 0; i < x.length; i++) y[i] += x[i];
    x = relu(y);
  }
  film(2);
  const squares = (at) => x.subarray(at * C, at * C + C);
  const scores = scoreMoves(t, moves, features, squares);
  const logits = moves.map(({from, kind}, index) =>
    linear(squares(from), t["policy.w"], t["policy.b"])[kind] + scores[index]);
  const top = Math.max(...logits), powers = logits.map((logit) => Math.exp(logit - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return moves.map((move, index) => ({move, probability: powers[index] / sum}))
    .sort((a, b) => b.probability - a.probability);
}

// Return a score for each move, compared with the others: MoveHead of model/network/decoder.py.
function scoreMoves(t, moves, features, squares) {
  const hidden = features.map((row, index) => {
    const {from, to, kind} = moves[index], out = linear(row, t["head.w"], t["head.b"]);
    addProduct(squares(from), 0, t["head.from"], out, 0);
    addProduct(squares(to), 0, t["head.to"], out, 0);
    return relu(out.map((value, c) => value + t["head.kinds"].data[kind * out.length + c]));
  });
  const scores = hidden.map((row) => dot(row, t["score.w"]) + t["score.b"].data[0]);
  const powers = scores.map((score) => Math.exp(Math.min(Math.max(score, -20), 20)));
  const total = powers.reduce((a, b) => a + b, 0);
  const mean = hidden[0].map((_, c) =>
    hidden.reduce((sum, row, index) => sum + powers[index] * row[c], 0) / total);
  const others = linear(mean, t["others.w"]);
  return hidden.map((row, index) => {
    const own = linear(row, t["own.w"], t["own.b"]);
    return scores[index] + dot(relu(own.map((value, c) => value + others[c])), t["last.w"]);
  });
}

// Decode the weights, 16-bit integers; `header` lists each tensor's name, shape and scale.
function readNetwork(header, base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const words = new DataView(bytes.buffer), tensors = {};
  let at = 0;
  for (const {name, shape, scale} of header.tensors) {
    const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
    for (let i = 0; i < data.length; i++, at += 2) data[i] = words.getInt16(at, true) * scale;
    tensors[name] = {shape, data};
  }
  return {config: header.config, tensors};
}
