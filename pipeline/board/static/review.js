// Review tab: each move of a game compared with human play at the players' ratings; the curve, the moments, the moves.
// Several games of one player are reviewed together (games.js).
import { $, button, change, chart, dom, game, percent, say, stream, table, toPgn } from "./page.js";
import { arrows, forget, plural, reviewGames } from "./games.js";
import { describeGame } from "./play.js";

let header = null; // description of the game, sent before the review
let [rows, summary] = [[], null]; // one row per move, and the summary
let running = null; // stops the latest review
let imported = ""; // a PGN from a file, the board or Lichess; it may be too long for the text field
const BROKEN = "The review was interrupted: press Review again.";
const countGames = (pgn) => Math.max((pgn.match(/^\s*\[Event /gm) ?? []).length, 1); // one may have no tags
export function begin() {
  const panel = $("review");
  $("pgn-file").onchange = () => readFile($("pgn-file").files[0]);
  panel.ondragover = (event) => event.preventDefault();
  panel.ondrop = (event) => event.preventDefault() ?? readFile(event.dataTransfer.files[0]);
  $("pgn").oninput = () => takePgn($("pgn").value);
  $("review-form").onsubmit = (event) => event.preventDefault() ?? startReview();
  $("review-this").onclick = reviewThis;
  $("stop").onclick = () => running?.abort();
  $("lichess").onsubmit = (event) => event.preventDefault() ?? runJob(download);
}

async function readFile(file) {
  if (file) takePgn(await file.slice(0, 8 << 20).text(), file.name);
}

// Keep a PGN for the next review, and say how many games it has.
function takePgn(pgn, name = "") {
  const count = countGames(pgn);
  imported = name && pgn;
  if (name) $("pgn").value = "";
  $("many").hidden = count < 2;
  if (count > 1 || name) showProgress(`${plural(count, "game")}${name && ` in ${name}`}. Press Review.`);
}

// Review the game on the board, with the tags of the game that was played or opened.
async function reviewThis() {
  const played = `${game.moves}` === `${game.played?.moves}` && !game.tags;
  const pgn = await toPgn(played ? describeGame() : game.tags ?? {}, played ? game.over : "");
  if (pgn) takePgn(pgn, "the board");
  if (pgn) startReview();
}

async function download(signal) {
  const [name, parts] = [$("lichess-name").value.trim(), []];
  await stream("/api/lichess", { name }, signal, ({ pgn, wait }) => {
    if (pgn) parts.push(pgn);
    const waiting = `Lichess asks to wait: ${wait} s…`;
    showProgress(wait ? waiting : `${plural(countGames(parts.join("")), "game")} of ${name}…`);
  });
  $("player-name").value = name;
  takePgn(parts.join(""), `the download of ${name}`);
}

function showProgress(text, wrong = false) {
  $("progress").textContent = text;
  $("progress").classList.toggle("bad", wrong);
}

// Run a job, which the Stop button ends; an earlier one is ended first.
async function runJob(job) {
  running?.abort();
  const current = (running = new AbortController());
  $("stop").hidden = false;
  try {
    await job(current.signal);
  } catch (error) {
    if (current === running) showProgress(error instanceof TypeError ? BROKEN : error.message, true);
  }
  if (current !== running) return;
  if (current.signal.aborted) showProgress("Stopped.");
  $("stop").hidden = $("meter").hidden = true;
}

function startReview() {
  const pgn = imported || $("pgn").value;
  [header, rows, summary] = [null, [], null];
  forget();
  $("reviewed").replaceChildren();
  showProgress("Reading the game…");
  return runJob((signal) => (countGames(pgn) > 1 ? reviewGames(pgn, signal) : reviewOne(pgn, signal)));
}

async function reviewOne(pgn, signal) {
  const [white, black] = [$("white"), $("black")].map(({ value }) => Number(value) || null);
  const settings = { pgn, network: $("network").value, source: $("source").value, white, black };
  await stream("/api/review", settings, signal, addPart);
  if (!summary && !signal.aborted) throw new Error(BROKEN);
}

function addPart(part) {
  header ??= part.header;
  if (part.row) rows.push(part.row);
  summary = part.summary;
  showProgress(summary ? "" : `Reviewed ${rows.length} of ${header.moves.length} half-moves…`);
  if (summary && game.mode === "review") goTo(summary.moments[0] ?? rows.length - 1);
}

const goTo = (index) => change({ start: header.start, moves: header.moves, at: index + 1 });
const goButton = (index) => button(rows[index].name, () => goTo(index));
const color = (row) => (row.loss > row.expected_loss ? "bad" : "good");
const isOnBoard = () => game.start === header.start && `${header.moves}`.startsWith(`${game.moves.slice(0, game.at)}`);

// Return White's score of the position on the board, if it belongs to the review.
export function score() {
  if (!summary || !isOnBoard()) return undefined;
  return game.at ? rows[game.at - 1]?.score : rows[0].before;
}

// Called after each change of the position: show the last move, with arrows for it and for the best move.
export function show(board) {
  say("");
  if (!summary) return board.draw(arrows());
  const row = isOnBoard() ? rows[game.at - 1] : null;
  if (row) {
    const kind = row.found ? "c2" : "c1";
    board.draw([{ uci: row.uci, width: 0.3, kind }, { uci: row.best_uci, width: 0.3, kind: "c2" }]);
  }
  const why = (index) => dom("span", { class: color(rows[index]) }, ` ${rows[index].why}`);
  const moments = summary.moments.map((index) => dom("li", {}, goButton(index), why(index)));
  $("reviewed").replaceChildren(
    dom("h2", {}, header.title), dom("p", { class: "soft" }, header.about), drawCurve(),
    dom("p", { id: "about-move" }, row?.text ?? "Choose a move."),
    dom("h2", {}, "Key moments"), dom("ol", {}, ...moments), moments.length ? "" : "No move stands out.",
    dom("h2", {}, "Both sides"), table(summary.table[0], summary.table.slice(1)),
    dom("h2", {}, "All moves"),
    dom("p", { class: "soft" }, describePercentages()), listRows(row),
  );
}

function describePercentages() {
  const { people, is_one_person: isOnePerson, ratings: { white, black } } = header;
  if (isOnePerson) return `Percentages are what the network expects of ${people}.`;
  return `Percentages are of ${people} rated ${white} (White's moves) and ${black} (Black's).`;
}

function listRows(current) {
  const cells = rows.map((row, index) => [
    goButton(index), row.loss.toFixed(2), percent(row.probability), row.best, percent(row.best_probability),
    percent(row.risk),
  ]);
  const all = table(["Move", "loss", "chosen by", "best move", "found by", "risk of a blunder"], cells);
  if (current) all.querySelectorAll("tbody tr")[rows.indexOf(current)].setAttribute("aria-current", "true");
  return all;
}

// Draw White's expected score over the game, with dots for the moments and a ring for the current move.
function drawCurve() {
  const values = [rows[0].before, ...rows.map(({ score: after }) => after)];
  const dots = summary.moments.map((index) => [index + 1, rows[index].score, color(rows[index])]);
  dots.push([game.at, values[game.at] ?? 0, "ring"]);
  const names = values.map((_, ply) => (ply && ply % 20 === 0 ? String(ply / 2) : ""));
  return chart("White's expected score over the game", [{ values, kind: "c0" }], 1, names, dots);
}
