"""The parts of Gandiva: deficits, shares, packs and trials of better placements."""
