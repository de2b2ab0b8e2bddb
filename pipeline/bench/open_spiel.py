"""OpenSpiel as a yardstick, where it is installed: its C++ tree search with a null evaluator, and its AlphaZero for chess.

Python cannot subclass OpenSpiel's evaluator, and its own evaluators play random games to the end. The null evaluator is
therefore some lines of C++, compiled against the headers in its package; the search is OpenSpiel's own.
"""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
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


def alphazero_rate(simulations: int, width: int, blocks: int, seconds: float) -> dict[str, Any]:
    """Return moves per CPU-second of OpenSpiel's AlphaZero for chess, or why they were not measured.

    Its actors' Python search is used: PUCT with Dirichlet noise, its evaluator and a residual network of this size.
    """
    needed = ("pyspiel", "jax", "flax", "optax", "chex", "orbax")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        return {"open_spiel": f"no {', '.join(missing)}: pip install open_spiel jax flax optax chex orbax-checkpoint"}
    spiel: Any = importlib.import_module("pyspiel")
    mcts: Any = importlib.import_module("open_spiel.python.algorithms.mcts")
    evaluator: Any = importlib.import_module("open_spiel.python.algorithms.alpha_zero.evaluator")
    library: Any = importlib.import_module("open_spiel.python.algorithms.alpha_zero.utils")
    game = spiel.load_game("chess")
    with tempfile.TemporaryDirectory(prefix="fianchetto-bench-") as folder:
        sizes = (game.observation_tensor_shape(), game.num_distinct_actions(), width, blocks)
        model = library.api_selector("nnx").Model.build_model("resnet", *sizes, 1e-4, 1e-3, folder)
        bot = mcts.MCTSBot(
            game,
            2.0,
            simulations,
            evaluator.AlphaZeroEvaluator(game, model),
            solve=False,
            dirichlet_noise=(0.25, 0.3),
            child_selection_fn=mcts.SearchNode.puct_value,
            dont_return_chance_node=True,
        )
        state = game.new_initial_state()
        bot.mcts_search(state)  # compiles the network
        began, moves = time.process_time(), 0
        while time.process_time() - began < seconds:
            if state.is_terminal():
                state = game.new_initial_state()
            state.apply_action(bot.mcts_search(state).best_child().action)
            moves += 1
        rate = moves / (time.process_time() - began)
    return {"open_spiel_moves_per_cpu_second": round(rate, 2)}
