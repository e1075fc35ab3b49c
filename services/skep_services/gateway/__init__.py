"""The gateway: HTTP for people and scripts, over a read model rebuilt from the facts."""
