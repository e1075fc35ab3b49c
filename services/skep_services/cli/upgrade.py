"""`skep upgrade`: the bus as this version needs it, so that services can be renewed one by one."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter

from skep_services.cli import exits
from skep_services.cli.exits import CommandError
from skep_services.cli.options import Command, print_json

ABOUT = """\
The first step of an upgrade under running jobs. It gives the bus the rights and the streams of this
version of Skep. Then start the services anew: allocator, admission, searches, advisor,
introspector, gateway, door, and last the agents. Jobs belong to runners and go on.
See docs/how-to/upgrade.md.
"""


def options(parser: ArgumentParser) -> None:
    """Add what `upgrade` takes."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = f"{ABOUT}\n{exits.HELP}"


def run(arguments: Namespace) -> int:
    """Renew the bus.

    Returns:
        The exit code: always 0.

    Raises:
        CommandError: No cluster runs, or its bus cannot be renewed.
    """
    from skep_services.adapters.nats_streams import DriftedStreamError
    from skep_services.ports import MissingStreamError, RefusedError
    from skep_services.supervisor import home as folder
    from skep_services.supervisor.renewing import NotRunningError, renew

    home = folder.home_folder(arguments.home)
    try:
        made = asyncio.run(renew(home))
    except NotRunningError as error:
        raise CommandError(exits.UNREACHABLE, str(error), "no-cluster") from None
    except (DriftedStreamError, MissingStreamError, RefusedError, ValueError) as error:
        raise CommandError(exits.FAILED, str(error), "bad-log") from None
    except TimeoutError:
        text = "the bus does not take its new configuration: see its log (nats/service.log)"
        raise CommandError(exits.FAILED, text, "bus") from None
    if arguments.json:
        print_json({"home": home, "streams_made": made})
        return exits.OK
    words = f"; streams made: {', '.join(made)}" if made else ""
    print(f"the bus of {home} is as this version needs it{words}")
    return exits.OK


COMMANDS = {"upgrade": Command(options, run)}
