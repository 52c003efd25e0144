"""States of the prefix cache in files, so that they outlive the process."""
