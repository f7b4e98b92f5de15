"""What stays on disk: files and databases that survive a crash, a full disk and a second process."""
