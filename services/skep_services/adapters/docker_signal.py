"""What has a container give its processes a signal: as `runner_signal`, in the image's own shell.

The container's init process passes what it gets on to the job's command, which would end by it if
it has no handler. So a shell in the container goes down the tree, and signals the uppermost
processes that have one.
"""

from __future__ import annotations

SHELL = "/bin/sh"
NO_HANDLER = 3
SCRIPT = r"""
bit=$1 name=$2 root=$3 found=
caught() {
  value=
  while read -r key value; do [ "$key" = SigCgt: ] && break; done 2>/dev/null <"/proc/$1/status"
  [ -n "$value" ] || return 1
  digit=$((bit / 4))
  while [ "$digit" -gt 0 ]; do value=${value%?}; digit=$((digit - 1)); done
  digit=${value#"${value%?}"}
  [ $(((0x${digit:-0} >> (bit % 4)) & 1)) = 1 ]
}
waiting=
below() { children=; read -r children 2>/dev/null <"/proc/$1/task/$1/children"; }
below "$root"
waiting=$children
while [ -n "$waiting" ]; do
  next=
  for pid in $waiting; do
    if caught "$pid"; then
      kill -s "$name" "$pid" && found=1
    else
      below "$pid"
      next="$next $children"
    fi
  done
  waiting=${next# }
  waiting=${waiting# }
done
[ -n "$found" ] || exit 3
"""
"""The arguments are the number of the signal less one, its name, and the process that the tree is
below: the init process, which is passed over."""


def command(number: int, name: str, root: int = 1) -> list[str]:
    """Return the command that gives a signal to the processes of the container it runs in.

    Args:
        number: The number of the signal.
        name: Its name without SIG.
        root: The process above those that may get it: the init process.
    """
    return [SHELL, "-c", SCRIPT, "skep-signal", str(number - 1), name, str(root)]


def trouble_of(code: int | None, name: str) -> str:
    """Return why the processes of a container have no signal, by how `command` ended.

    Args:
        code: Its exit code; None: it could not be seen.
        name: The name of the signal.
    """
    if code == 0:
        return ""
    if code == NO_HANDLER:
        return f"none of its processes has a handler for SIG{name}"
    return f"the container's {SHELL} did not give SIG{name}: exit code {code}"
