"""Speeds and promises, live: real trainings on nodes with networks of their own.

    python -m tests.system.live_speeds [--out FOLDER] [--models N]

See `__main__`; what came of it: `docs/experiments/live-speeds.md`.
"""
