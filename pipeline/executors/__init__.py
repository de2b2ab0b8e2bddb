"""Run a function over many items, in processes on this machine or on Ray."""
