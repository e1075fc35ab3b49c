"""The agent's behaviour: `machine` decides, `parts` says what it knows and asks for."""

from skep.machines.agent.machine import FORGET_AT_ONCE, AgentMachine
from skep.machines.agent.parts import (
    PEER_GRACE_S,
    PORT_BUSY,
    DevicesSeen,
    DeviceUse,
    ExitProcess,
    ForgetRun,
    ListRuns,
    Published,
    PublishEvent,
    RankStats,
    RunsListed,
    StartRank,
    StopRun,
)

__all__ = [
    "FORGET_AT_ONCE",
    "PEER_GRACE_S",
    "PORT_BUSY",
    "AgentMachine",
    "DeviceUse",
    "DevicesSeen",
    "ExitProcess",
    "ForgetRun",
    "ListRuns",
    "PublishEvent",
    "Published",
    "RankStats",
    "RunsListed",
    "StartRank",
    "StopRun",
]
