"""Models of several clusters become one: the weighted mean of their weights.

Each cluster tunes the same model on its own jobs, and all of them go on from the mean. No job and
no log leaves its cluster. Only models of one form can be averaged, and only those that began from
the same model mean anything together: weights of networks that were trained apart do not
correspond.

Source: DL², section 6.5 (federated training); McMahan et al., "Communication-efficient learning of
deep networks from decentralized data" (AISTATS 2017), for the weights by amounts of data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skep.learn import modelfile
from skep.learn.modelfile import Model, Ranges
from skep_lab.learn.progress import UnfitError

Pairs = tuple[tuple[float, float], ...]


def average(models: Sequence[Model], parts: Sequence[float] = ()) -> bytes:
    """Return the file of the weighted mean of models.

    Args:
        models: Two or more, of one schema and form.
        parts: How much each counts, such as its number of jobs; empty: all the same.

    Returns:
        A model whose ranges hold those of all. Its parent is that of all models, if it is the same.

    Raises:
        UnfitError: They cannot be averaged.
    """
    if len(models) < 2:
        text = "to average takes two models or more"
        raise UnfitError(text)
    parts = parts or [1.0] * len(models)
    if len(parts) != len(models):
        text = f"{len(parts)} parts are given for {len(models)} models"
        raise UnfitError(text)
    if not all(np.isfinite(each) and each > 0 for each in parts):
        text = "each part is a number above 0"
        raise UnfitError(text)
    first = models[0].header
    for model in models[1:]:
        header = model.header
        for what in ("schema", "job", "head"):
            mine, theirs = getattr(header, what), getattr(first, what)
            if mine != theirs:
                text = f"model {model.name[:12]} has {what} {mine}, and {models[0].name[:12]} has "
                text += f"{theirs}: only models of one form can be averaged"
                raise UnfitError(text)
    share = np.array(parts, dtype=np.float64) / max(parts)  # The sum of parts may be no number.
    share /= sum(share)
    weights = {
        name: np.tensordot(
            share, np.stack([model.net.weights[name] for model in models]).astype(np.float64), 1
        ).astype(np.float32)
        for name in models[0].net.weights
    }
    parents = {model.header.parent: None for model in models}
    header = modelfile.Header(
        schema=first.schema,
        job=first.job,
        head=first.head,
        trained_on="; ".join(model.header.trained_on or "unknown" for model in models),
        learner=f"average of {', '.join(model.name for model in models)}",
        seeds=tuple(seed for model in models for seed in model.header.seeds),
        parent=first.parent if len(parents) == 1 else "",
        report={f"part_{place}": float(each) for place, each in enumerate(share)},
        ranges=Ranges(
            job=_around([model.header.ranges.job for model in models]),
            cluster=_around([model.header.ranges.cluster for model in models]),
            candidate=_around([model.header.ranges.candidate for model in models]),
        ),
    )
    return modelfile.dump(weights, header)


def _around(ranges: Sequence[Pairs]) -> Pairs:
    """Return the ranges that hold all; empty, that is any number, if one of them is."""
    if not all(ranges):
        return ()
    return tuple(
        (min(low for low, _ in each), max(high for _, high in each))
        for each in zip(*ranges, strict=True)
    )
