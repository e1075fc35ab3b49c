"""Questions put to the scheduler with random tenants: fair sharing, strict order, thrashing."""
