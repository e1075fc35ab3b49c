"""What would happen: answers from a copy of the allocator, which is then thrown away."""
