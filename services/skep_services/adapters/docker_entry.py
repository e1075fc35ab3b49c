"""What every container of a job runs first: it opens the log, checks the command and executes it.

The image's own shell runs it, so an image needs a /bin/sh. Docker itself could say only of some
commands that they cannot be executed, and would say it of none below an init process.
"""

from __future__ import annotations

from collections.abc import Sequence

SHELL = "/bin/sh"
EXECUTED = "ok"
REFUSED = "no "
"""What the file `said` holds: the command is being executed, or why it cannot be."""

NOT_FOUND = 127
UNUSABLE = 125
"""Exit statuses: of the init process where there is no shell, and of the script where it cannot
write. The second is also how a container ends that is started once more by hand.
"""

# The arguments are the log, the file `said`, what comes first in PYTHONPATH (only here is it known
# what the image sets), and the command. `said` is empty then, or was written: a command is executed
# once however often its container is started.
_SCRIPT = r"""
{ true >>"$1"; } 2>/dev/null || exit 125
exec </dev/null >>"$1" 2>&1
said=$2
[ -z "$3" ] || export PYTHONPATH="$3${PYTHONPATH:+:$PYTHONPATH}"
shift 3
[ -s "$said" ] && exit 125
set -f
no() { printf 'no %s\n' "$1" >>"$said" || exit 125; exit 126; }
path=
case $1 in
/*) path=$1 ;;
*/*) path=$PWD/${1#./} ;;
*)
  old=$IFS
  IFS=:
  for folder in $PATH; do
    [ -e "$folder/$1" ] || continue
    [ -n "$path" ] || path=$folder/$1
    [ -x "$folder/$1" ] && [ ! -d "$folder/$1" ] && path=$folder/$1 && break
  done
  IFS=$old
  [ -n "$path" ] || no "executable $1 was not found in PATH: $PATH"
  ;;
esac
[ -e "$path" ] || no "executable $path does not exist in the container"
[ -d "$path" ] && no "executable $path is a folder"
[ -x "$path" ] || no "$path is not executable: chmod +x it, or name its interpreter first"
if [ -r "$path" ]; then
  line=
  IFS= read -r line <"$path"
  case $line in
  '#!'*)
    line=${line#??}
    for word in $line; do break; done
    [ -e "$word" ] || no "$path asks for the interpreter $word, which the container lacks"
    ;;
  *ELF*) ;;
  *) no "$path is neither a program nor a script with a #! line" ;;
  esac
fi
{ printf 'ok\n' >>"$said"; } 2>/dev/null || exit 125
exec "$@"
"""


def entrypoint(log_path: str, said_path: str, python_path: str) -> Sequence[str]:
    """Return what to execute in a container before its command, the container's arguments.

    Args:
        log_path: The log, which output is appended to.
        said_path: The file in which it says what becomes of the command.
        python_path: What comes first in PYTHONPATH; empty: the image's is kept.
    """
    return (SHELL, "-c", _SCRIPT, "skep", log_path, said_path, python_path)
