"""Searches from outside: a client of the gateway, and Optuna's samplers and pruners over it."""
