"""Scripts and libraries that store, move and continue their training when Skep asks."""
