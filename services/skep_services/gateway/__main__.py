"""Run the gateway service."""

from __future__ import annotations

from typing import Any

from skep_services.adapters.clock import SystemClock
from skep_services.adapters.otel import OtelTracer
from skep_services.adapters.wiring import connect
from skep_services.gateway.peopled import people_settings
from skep_services.gateway.server import listen_address, run_gateway, tokens_of
from skep_services.service import Fatal, Settings, run, server_context


async def main(chosen: Settings, log: Any) -> None:
    """Serve until cancelled."""
    # What is wrong with the settings shows before anything waits for the bus.
    host, _ = listen_address(chosen)
    server_context(chosen, host, log.warning)
    tokens_of(chosen)
    people_settings(chosen.environment)
    fatal = Fatal()
    bus = await connect(chosen, fatal)
    tracer = OtelTracer(chosen.service, chosen.identity, bus)
    try:
        await fatal.guard(run_gateway(chosen, log, bus, SystemClock(), tracer))
    finally:
        await bus.close()
        tracer.close()


if __name__ == "__main__":
    run("gateway", main)
