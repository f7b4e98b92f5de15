"""Audits of whole runs: what an adversary can tell by experiment, beside what a run's statement claims and proves.

An audit is an experiment on copies: it builds the run's federation anew from its recipe, plays with made-up records and
vectors, and never touches the ledgers, the model or the rounds of the run itself. `sordino.audits.whole.audit` does it.
"""
