"""Audits: what an adversary can tell apart, what is really drawn, and what a finished run gave away."""
