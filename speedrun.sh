#!/usr/bin/env bash
# From games to a measured, fine-tuned player, with the time of each step at the end.
#
#   ./speedrun.sh [MONTH|GAMES]      a month of Lichess to download (default 2013-01), or a file
#
#   OUT=datasets/speedrun            folder of all results
#   MINUTES=15                       minutes of training
#   TUNE="--generations 1 ..."       options of `fianchetto finetune`
#   MATCH="--games 100"              options of `fianchetto arena`
#   PRICE=2.50                       price of this machine per hour, to print the cost
#
# Run it again after a stop: finished steps are not repeated, and the others resume. A step whose
# games or options have changed runs again, and so do all later ones; for other games, choose
# another OUT. Training and search use a GPU if torch finds one.
set -euo pipefail
games=${1:-2013-01}
if [ -e "$games" ]; then games=$(realpath "$games"); fi
cd "$(dirname "$0")"
out=${OUT:-datasets/speedrun}
export PATH="$PWD/.venv/bin:$PATH"
mkdir -p "$out"
times=$out/times.tsv # a line for each attempt: step, seconds, exit status, command
touch "$times"

ran= # not empty once a step has run
step() { # NAME COMMAND...: run a command and record its time, unless it and all before succeeded
  local name=$1 begun=$SECONDS status=0
  shift
  if [ -z "$ran" ] && grep -qxF "0	$*" <(cut -f 3- "$times"); then return; fi
  ran=yes
  echo "== $name: fianchetto $*" >&2
  fianchetto "$@" || status=$?
  printf '%s\t%s\t%s\t%s\n' "$name" $((SECONDS - begun)) "$status" "$*" >>"$times"
  if [ "$status" -ne 0 ]; then
    echo "speedrun: $name ended with status $status; run the same command to go on" >&2
    exit "$status"
  fi
}

if [ ! -e "$games" ]; then
  step fetch fetch "$games" --out "$out/dumps"
  games=$out/dumps/lichess_db_standard_rated_$games.pgn.zst
fi
step ingest ingest "$games" --planes compact --out "$out/positions"
step train train --positions "$out/positions" --minutes "${MINUTES:-15}" --out "$out/network"
step report report --checkpoint "$out/network" --positions "$out/positions" --out "$out/report"
# a short generation; one of 48,000 positions takes an hour or two on two cores
# shellcheck disable=SC2086 # TUNE and MATCH hold several options
step finetune finetune --checkpoint "$out/network" --positions "$out/positions" \
  --out "$out/tuned" ${TUNE:---generations 1 --set explore.count=12000}
weights() { (cd "$1" && echo weights-*.safetensors); } # the name has the content's hash
if [ "$(weights "$out/tuned/best")" = "$(weights "$out/network")" ]; then
  echo "No candidate was better: $out/tuned/best is the network that fine-tuning started from."
else
  # shellcheck disable=SC2086
  step match arena "$out/tuned/best" "$out/network" --out "$out/match" ${MATCH:---games 100}
  step report-tuned report --checkpoint "$out/network,$out/tuned/best" \
    --positions "$out/positions" --out "$out/report-tuned"
fi

awk -F '\t' -v price="${PRICE:-}" '
  !($1 in seconds) { order[++count] = $1 }
  { seconds[$1] += $2; total += $2 }
  END {
    printf "\n%-14s %10s\n", "step", "minutes"
    for (n = 1; n <= count; n++) printf "%-14s %10.1f\n", order[n], seconds[order[n]] / 60
    printf "%-14s %10.1f\n", "total", total / 60
    if (price != "") printf "%-14s %10.2f\n", "cost", total / 3600 * price
  }' "$times"
echo "
report: $out/report/report.html
next: fianchetto play --checkpoint $out/tuned/best"
