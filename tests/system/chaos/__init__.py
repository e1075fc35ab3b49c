"""Faults mixed at random against a running cluster, and a checker that trusts no service."""
