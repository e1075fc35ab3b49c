"""The volumes of a job: which it may have, where it sees them, and in which mode."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skep.wire.parse import nearest
from skep.wire.reasons import Reason
from skep.wire.spec import JobSpec, Problem
from skep.wire.volumes import READ, WRITE, Mount, Volume, overlapping, place_and_mode, wanted


def resolved(spec: JobSpec, volumes: Mapping[str, Volume]) -> JobSpec | list[Problem]:
    """Return a spec with its volumes as nodes are told of them, or why it may not have them.

    Args:
        spec: The spec, whose places are sound.
        volumes: The cluster's volumes by name.
    """
    if not spec.volumes:
        return spec
    mounts: list[Mount] = []
    problems: list[Problem] = []
    for name, text in wanted(spec.volumes).items():
        found = _mount(spec.vc, name, text, volumes)
        if isinstance(found, Mount):
            mounts.append(found)
        else:
            problems.append(found)
    both = overlapping({one.name: one.target for one in mounts})
    if both is not None and not problems:
        places = {one.name: one.target for one in mounts}
        text = f"`{both[1]}` would be at {places[both[1]]}, and `{both[0]}` is at {places[both[0]]}"
        problems = [
            Problem(
                path=f"$.volumes.{both[1]}",
                reason=Reason.PLACES_OVERLAP,
                text=text,
                suggestion="give each volume a place of its own",
            )
        ]
    return problems or msgspec.structs.replace(spec, mounts=tuple(mounts))


def _mount(vc: str, name: str, text: str, volumes: Mapping[str, Volume]) -> Mount | Problem:
    """Return a volume as a job gets it, or why it does not get it."""
    path, volume = f"$.volumes.{name}", volumes.get(name)
    usable = sorted(each for each, one in volumes.items() if one.mode_for(vc))
    known = f"`{vc}` may use: {', '.join(usable)}" if usable else f"`{vc}` may use none"
    if volume is None:
        return Problem(
            path=path,
            reason=Reason.UNKNOWN_VOLUME,
            text=f"there is no volume `{name}`; {known}",
            suggestion=nearest(name, usable),
        )
    may = volume.mode_for(vc)
    if not may:
        return Problem(
            path=path,
            reason=Reason.VOLUME_NOT_ALLOWED,
            text=f"`{vc}` may not use volume `{name}`; {known}",
            suggestion="ask an operator",
        )
    place, mode = place_and_mode(text)
    if mode == WRITE and may == READ:
        return Problem(
            path=path,
            reason=Reason.VOLUME_READ_ONLY,
            text=f"`{vc}` may read volume `{name}`, and not write to it",
            suggestion=f"ask for `{place}:ro`" if place else "ask for it without `:rw`",
        )
    return Mount(
        name=name,
        path=volume.path,
        target=place or volume.path,
        mode=mode or may,
        mounted=volume.mounted,
    )
