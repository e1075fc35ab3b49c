"""Searches: many trials of one job as one object. `machine` decides, `plan` says who runs."""

from skep.machines.searches.machine import SearchesMachine as SearchesMachine
