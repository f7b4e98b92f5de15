"""The papers' experiments, run again: what each paper states, what came out here, and how far apart they are."""
