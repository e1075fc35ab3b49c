"""The models that come with Skep: files in `models`, named by the SHA-256 of their content."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "models"

NEWEST = "4deecb39691c378e8471f7727a9416d7bc47b7b6ebf3b4e4ee3d7fee2a2e9dc1"
"""The model that came last: names are hashes, and have no order."""


def shipped() -> dict[str, Path]:
    """Return the files of the models that come with Skep, by their names."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.safetensors"))}
