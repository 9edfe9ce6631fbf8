"""What can have happened, one file per family; a cause exists because its file does."""
