"""The models that come with Skep: files in `models`, named by the SHA-256 of their content."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "models"


def shipped() -> dict[str, Path]:
    """Return the files of the models that come with Skep, by their names."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.safetensors"))}
