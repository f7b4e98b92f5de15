"""The same federated job done by others: each a program of its own that prints one line of JSON."""
