"""Writing `.ninfer` sets, and files that appear together or not at all."""
