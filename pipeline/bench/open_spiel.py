"""OpenSpiel's C++ tree search with a null evaluator as a yardstick, where it is installed.

Python cannot subclass OpenSpiel's evaluator, and its own evaluators play random games to the end. The null evaluator is
therefore some lines of C++, compiled against the headers in its package; the search is OpenSpiel's own.
"""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MOVES = 2_000
GAME_PLIES = 80
"""Length at which a game is replaced by a new one, here and in our own measurement."""

_SOURCE = """
#include <cstdlib>
#include <ctime>
#include <memory>
#include "open_spiel/algorithms/mcts.h"
#include "open_spiel/spiel.h"
using namespace open_spiel;

struct NullEvaluator : algorithms::Evaluator {
  std::vector<double> Evaluate(const State&) override { return {0.0, 0.0}; }
  ActionsAndProbs Prior(const State& state) override {
    ActionsAndProbs priors;
    auto actions = state.LegalActions();
    for (Action action : actions) priors.push_back({action, 1.0 / actions.size()});
    return priors;
  }
};

extern "C" double simulations_per_cpu_second(int simulations, int moves, int plies, int puct) {
  auto game = LoadGame("chess");
  auto policy = puct ? algorithms::ChildSelectionPolicy::PUCT : algorithms::ChildSelectionPolicy::UCT;
  algorithms::MCTSBot bot(*game, std::make_shared<NullEvaluator>(), 2.0, simulations, 1000, false, 1, false, policy);
  auto state = game->NewInitialState();
  srand(1);
  clock_t began = clock();
  for (int move = 0; move < moves; move++) {
    if (state->IsTerminal() || move % plies == 0) state = game->NewInitialState();
    bot.Step(*state);
    auto actions = state->LegalActions();
    state->ApplyAction(actions[rand() % actions.size()]);
  }
  return simulations * (double)moves * CLOCKS_PER_SEC / (clock() - began);
}
"""


def tree_rates(simulations: int) -> dict[str, Any]:
    """Return simulations per CPU-second of OpenSpiel's tree search by UCT and by PUCT, or why they were not measured."""
    if importlib.util.find_spec("pyspiel") is None:
        return {"open_spiel": "not installed: pip install open_spiel"}
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return {"open_spiel": "no C++ compiler for its null evaluator"}
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        source, library = Path(folder) / "null.cc", Path(folder) / "null.so"
        source.write_text(_SOURCE)
        done = subprocess.run(
            [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", *_headers(), str(source), "-o", str(library)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            return {"open_spiel": f"its headers do not compile here: {done.stderr.splitlines()[0][:200]}"}
        rate = _loaded(library).simulations_per_cpu_second
        rate.restype = ctypes.c_double
        uct, puct = (float(rate(simulations, MOVES, GAME_PLIES, kind)) for kind in (0, 1))
    return {
        "open_spiel_uct_simulations_per_cpu_second": round(uct),
        "open_spiel_puct_simulations_per_cpu_second": round(puct),
    }


def _headers() -> list[str]:
    """Return the compiler's options for the headers in the package."""
    spec = importlib.util.find_spec("open_spiel")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    folders = (package.parent, package, package / "abseil-cpp", package / "json" / "include")
    return [f"-I{folder}" for folder in folders]


def _loaded(library: Path) -> ctypes.CDLL:
    """Load the library so that it finds OpenSpiel's symbols."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | ctypes.RTLD_GLOBAL)
    importlib.import_module("pyspiel")
    sys.setdlopenflags(flags)
    return ctypes.CDLL(str(library))
