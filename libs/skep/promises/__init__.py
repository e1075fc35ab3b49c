"""Deadlines as promises: what a VC's own cells can hold, and what they are promised to.

`cells` counts what a VC owns, `length` says how long a job takes at each size, `book` keeps which
job is promised which GPUs when, and `judge` answers to a deadline. All of it is pure: nothing here
knows of other VCs' GPUs, which can only end a job sooner.
"""
