"""The templates that managers wrote for their virtual clusters, as the facts tell them.

Those of the operator are in the cluster file. A template of the operator's goes before one of the
managers' that has its name.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping

import msgspec

from skep.units import Instant
from skep.wire.cluster import Template
from skep.wire.template_facts import TemplateSet


class Managed(msgspec.Struct, frozen=True):
    """One template, when it was set, and by whom (empty: the VC as a whole)."""

    template: Template
    at: Instant
    by: str = ""
    number: int = 0


class Templates(msgspec.Struct):
    """The managers' templates by virtual cluster and name."""

    of_vc: dict[str, dict[str, Managed]] = {}

    def apply(self, fact: TemplateSet) -> None:
        """Take over that a template is set or removed."""
        if fact.template is not None:
            managed = Managed(fact.template, fact.at, fact.by, fact.number)
            self.of_vc.setdefault(fact.vc, {})[fact.name] = managed
        elif fact.name in self.of_vc.get(fact.vc, ()):
            del self.of_vc[fact.vc][fact.name]
            if not self.of_vc[fact.vc]:
                del self.of_vc[fact.vc]

    def keep_only(self, vcs: Iterable[str]) -> list[str]:
        """Take over which VCs there are; return those whose templates went with them."""
        there = dict.fromkeys(vcs)
        gone = [vc for vc in self.of_vc if vc not in there]
        for vc in gone:
            del self.of_vc[vc]
        return gone

    def named(self, vc: str, operators: Mapping[str, Template]) -> Mapping[str, Template]:
        """Return the templates that jobs of a VC may name.

        Args:
            vc: The virtual cluster.
            operators: Those that the cluster file has for it.
        """
        own = self.of_vc.get(vc)
        if not own:
            return operators
        found = {name: managed.template for name, managed in own.items()}
        return ChainMap(dict(operators), found)

    def facts(self) -> list[TemplateSet]:
        """Return what rebuilds this state."""
        return [
            TemplateSet(
                vc=vc, name=name, number=each.number, at=each.at, template=each.template, by=each.by
            )
            for vc, own in self.of_vc.items()
            for name, each in own.items()
        ]
