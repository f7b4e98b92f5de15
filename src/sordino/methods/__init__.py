"""Methods: one paper's algorithm or one baseline a file; their tables are in `tables`."""
