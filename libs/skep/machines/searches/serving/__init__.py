"""Services: which replicas there are, and how many."""

from skep.machines.searches.serving.part import Serving
from skep.machines.searches.serving.state import Replica, Service

__all__ = ["Replica", "Service", "Serving"]
