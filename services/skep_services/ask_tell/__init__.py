"""Searches from outside: a client of the gateway, and on top of it Optuna's samplers and pruners."""
