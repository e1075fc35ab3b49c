"""Access: the only writer of people, roles, tokens, nodes' keys, and the audit log."""

from skep.machines.access.machine import AccessMachine as AccessMachine
from skep.machines.access.snapshot import Kept as Kept
