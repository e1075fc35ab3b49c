"""Searches: many trials of one job as one object. `machine` decides, `plan` orders the trials."""

from skep.machines.searches.machine import SearchesMachine as SearchesMachine
