"""How faults of machines are done and undone, beside those that processes have."""

from __future__ import annotations

import asyncio

from tests.system.chaos.faults import WAYS, Act, Fault, Injector
from tests.system.chaos.network import Cut
from tests.system.chaos.replay import Replayer
from tests.system.deployment.chaos.target import Machines


class MachineInjector(Injector):
    """Does the faults of a plan to a cluster of machines."""

    def __init__(self, target: Machines, replayer: Replayer) -> None:
        super().__init__(target, replayer)
        self.machines = target

    def acts(self) -> dict[str, Act]:
        cuts = dict.fromkeys(("apart", "apart-long"), self._apart)
        return (
            super().acts()
            | cuts
            | {
                "kill-unit": self._kill,
                "power": self._power,
                "power-all": self._power_all,
                "partition": self._pair,
            }
        )

    async def _power(self, fault: Fault) -> bool:
        if not await asyncio.to_thread(self.machines.power_off, fault.component):
            return False
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(self.machines.power_on, fault.component)
        return True

    async def _power_all(self, fault: Fault) -> bool:
        """Have all servers and nodes lose their power at once."""
        await asyncio.to_thread(self.machines.kill_everything, jobs=True)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(self.machines.restart)
        return True

    async def _apart(self, fault: Fault) -> bool:
        return await self.cut_off(fault.component, Cut("apart"), fault.seconds)

    async def _pair(self, fault: Fault) -> bool:
        """Have one machine lose another, both ways or one, and nobody else."""
        one, _, other = fault.component.partition("|")
        cut = Cut(WAYS[fault.number % len(WAYS)], (other,))
        return await self.cut_off(one, cut, fault.seconds)
