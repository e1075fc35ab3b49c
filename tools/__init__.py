"""What builds, generates and checks the project."""
