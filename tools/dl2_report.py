"""Print the tables of DL²'s figures and draw its curves, from what `dl2_main` stored.

    python -m tools.dl2_report RESULTS --data DIR --out docs/experiments

RESULTS holds `seed-*.json`, and keeps what the rules reached in `rules.json`, which is made anew
for other data or settings; pictures are written to `--out`, tables go to standard output.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from skep_lab.learn import dl2_figures, dl2_main
from skep_services.simulations import plots

PICTURES = {
    "dl2-fig10": (
        "Figure 10: completion time while it learns",
        ("small", "small-bandit", "small-online-only", "small-shaped"),
    ),
    "dl2-federated": ("Federated training: steps of each cluster", dl2_figures.FEDERATED),
    "dl2-fig17": (
        "Figure 17: models are added at steps 500 and 1,000",
        ("small-shaped", "small-shaped-types"),
    ),
}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="The tables and curves of DL²'s figures.")
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results = [json.loads(path.read_text()) for path in sorted(given.results.glob("seed-*.json"))]
    worlds = dl2_main.worlds_of(given.data)
    known = dl2_figures.ruled_once(given.results / "rules.json", worlds)
    for line in dl2_figures.lines(results, known):
        print(line)
    drawn = {
        name: (title, dl2_figures.curves(results, runs, "sampled"), "steps", "slots")
        for name, (title, runs) in PICTURES.items()
    }
    title = "Figure 11: a Seq2Seq job"
    drawn["dl2-fig11"] = (title, dl2_figures.sizes(results, "large"), "slots", "number")
    for name, (title, curves, x_title, y_title) in drawn.items():
        lines = [plots.Line(each, points) for each, points in curves.items()]
        if len(lines) < 2:
            continue
        plot = plots.lines(
            "", lines, plots.number_text, plots.number_text, x_title=x_title, y_title=y_title
        )
        (given.out / f"{name}.svg").write_text(plots.stacked(title, [plot]))


if __name__ == "__main__":
    main()
