"""Runs: one loop over a coordinator, a fleet and a store, for simulated and real clients alike."""
