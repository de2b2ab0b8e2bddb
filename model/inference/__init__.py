"""Run a checkpoint as an evaluator or a player, with torch or as ONNX."""
