"""Environment variables whose values look like secrets: a spec is read by everybody of its VC."""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)"
    r"(_|$)",
    re.IGNORECASE | re.ASCII,
)
VALUES = re.compile(
    r"(ghp_|gho_|github_pat_|glpat-|hf_|sk-|xox[abp]-|AKIA|ASIA|AIza|eyJ[\w-]+\.eyJ)[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]+@",
    re.ASCII,
)
"""How tokens of well-known services begin, private keys, and addresses with a password."""
VALUE_CHARACTERS = 4096
"""So much of a value is looked at."""


def looks_secret(env: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that look like secrets, in order."""
    return [
        name
        for name, value in env.items()
        if value and (NAMES.search(name) or VALUES.match(value[:VALUE_CHARACTERS]))
    ]


def warning(names: list[str]) -> str:
    """Return one line about such variables."""
    some = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return (
        f"env has values that look like secrets ({some}): they are stored in logs and shown to "
        f"others; keep them with `skep secret set NAME` and name them under `secrets`"
    )
