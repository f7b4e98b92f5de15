"""The papers' experiments, run again: what each paper states, what came out here, and how far apart they are.

This package is in the repository and not in the wheel; `sordino reproduce` runs it from a clone.
"""
