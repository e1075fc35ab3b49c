"""What fulfils the ports: NATS, the local journal, the clock, and the in-memory reference."""
