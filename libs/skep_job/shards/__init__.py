"""State that is split over the ranks of a gang: FSDP2, DTensor, and the shards of optimizers."""
