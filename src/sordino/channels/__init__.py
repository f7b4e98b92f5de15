"""Channels: how reports travel from clients to the coordinator."""
