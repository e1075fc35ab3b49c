"""Where each job's time went: a fold of its own over the allocator's facts.

facts --> fold.apply --> lives (intervals of each job) --> told (shares that add up)
             |
             +--> holders (the jobs that held what others waited for)
"""
