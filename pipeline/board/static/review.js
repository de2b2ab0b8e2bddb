// Review tab: each move of a game compared with human play at the players' ratings; the curve, the moments and the moves.
import { $, button, change, chart, dom, game, percent, request, say, table, toPgn } from "./page.js";

let header = null; // description of the game, sent before the review
let [rows, summary] = [[], null]; // one row per move, and the summary
let started = 0; // number of the latest review
const BROKEN = "The review was interrupted: press Review again.";
export function begin() {
  $("pgn-file").onchange = async () => ($("pgn").value = await $("pgn-file").files[0].slice(0, 1 << 20).text());
  $("review-form").onsubmit = (event) => event.preventDefault() ?? run();
  $("review-this").onclick = async () => ($("pgn").value = (await toPgn({})) ?? "") && run();
}

function showProgress(text, wrong = false) {
  $("progress").textContent = text;
  $("progress").classList.toggle("bad", wrong);
}

// Read the stream of a review: one JSON object per line.
async function run() {
  const mine = ++started;
  [header, rows, summary] = [null, [], null];
  $("reviewed").replaceChildren();
  showProgress("Reading the game…");
  try {
    const [white, black] = [$("white"), $("black")].map(({ value }) => Number(value) || null);
    const settings = { pgn: $("pgn").value, network: $("network").value, source: $("source").value, white, black };
    const response = await request("/api/review", settings);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (let part = await reader.read(); !part.done && mine === started; part = await reader.read()) {
      const lines = (text + part.value).split("\n");
      text = lines.pop();
      lines.forEach((line) => take(JSON.parse(line)));
    }
    if (mine === started && !summary) throw new Error(BROKEN);
  } catch (error) {
    showProgress(error instanceof TypeError ? BROKEN : error.message, true);
  }
}

function take(part) {
  if (part.error) throw new Error(part.error);
  header ??= part.header;
  if (part.row) rows.push(part.row);
  summary = part.summary;
  showProgress(summary ? "" : `Reviewed ${rows.length} of ${header.moves.length} half-moves…`);
  if (summary && game.mode === "review") goTo(summary.moments[0] ?? rows.length - 1);
}

const goTo = (index) => change({ start: header.start, moves: header.moves, at: index + 1 });
const goButton = (index) => button(rows[index].name, () => goTo(index));
const color = (row) => (row.loss > row.expected_loss ? "bad" : "good");

// Called after each change of the position: show the last move, with arrows for it and for the best move.
export function show(board) {
  say("");
  if (!summary) return;
  const same = game.start === header.start && `${header.moves}`.startsWith(`${game.moves.slice(0, game.at)}`);
  const row = same ? rows[game.at - 1] : null;
  if (row) board.draw([{ uci: row.uci, width: 0.3, kind: row.found ? "c2" : "c1" }, { uci: row.best_uci, width: 0.3, kind: "c2" }]);
  const why = (index) => dom("span", { class: color(rows[index]) }, ` ${rows[index].why}`);
  const moments = summary.moments.map((index) => dom("li", {}, goButton(index), why(index)));
  $("reviewed").replaceChildren(
    dom("h2", {}, header.title), dom("p", { class: "soft" }, header.about), drawCurve(),
    dom("p", { id: "about-move" }, row?.text ?? "Choose a move."),
    dom("h2", {}, "Key moments"), dom("ol", {}, ...moments), moments.length ? "" : "No move stands out.",
    dom("h2", {}, "Both sides"), table(summary.table[0], summary.table.slice(1)),
    dom("h2", {}, "All moves"), listRows(row),
  );
}

function listRows(current) {
  const cells = rows.map((row, index) => [
    goButton(index), row.loss.toFixed(2), percent(row.probability), row.best, percent(row.best_probability), percent(row.risk),
  ]);
  const all = table(["Move", "loss", "would play it", "best move", "would find it", "risk"], cells);
  if (current) all.querySelectorAll("tbody tr")[rows.indexOf(current)].setAttribute("aria-current", "true");
  return all;
}

// Draw White's expected score over the game, with dots for the moments and a ring for the current move.
function drawCurve() {
  const values = [rows[0].before, ...rows.map(({ score }) => score)];
  const dots = summary.moments.map((index) => [index + 1, rows[index].score, color(rows[index])]);
  dots.push([game.at, values[game.at] ?? 0, "ring"]);
  const names = values.map((_, ply) => (ply && ply % 20 === 0 ? String(ply / 2) : ""));
  return chart("White's expected score over the game", [{ values, kind: "c0" }], 1, names, dots);
}
