"""What people get from a run: its folder on disk, its plots, its page, and comparisons of several runs."""
