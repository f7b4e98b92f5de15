"""The experiments of each paper, as data."""
