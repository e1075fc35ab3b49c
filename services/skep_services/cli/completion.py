"""`skep completion`: the scripts that have a shell complete commands, options, jobs and more."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skep_services.cli import exits
from skep_services.cli.options import Command, print_json

BASH = r"""# In ~/.bashrc:  source <(skep completion bash)
_skep() {
    local line kind lines
    COMPREPLY=()
    mapfile -t lines < <(skep __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    kind="${lines[0]}"
    if [[ "$kind" == files ]]; then
        compopt -o default 2>/dev/null
        return
    fi
    for line in "${lines[@]:1}"; do
        COMPREPLY+=("${line%%$'\t'*}")
    done
}
complete -F _skep skep
"""

ZSH = r"""#compdef skep
# In ~/.zshrc, after compinit:  source <(skep completion zsh)
_skep() {
    local -a lines names shown
    local line
    lines=("${(@f)$(skep __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ "${lines[1]}" == files ]]; then
        _files
        return
    fi
    for line in "${(@)lines[2,-1]}"; do
        [[ -n "$line" ]] || continue
        names+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    compadd -l -d shown -a names
}
compdef _skep skep
"""

FISH = r"""# In ~/.config/fish/config.fish:  skep completion fish | source
function __skep_complete
    set -l words (commandline -opc)
    set -l lines (skep __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test "$lines[1]" = files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $lines[2..-1]
    end
end
complete -c skep -f -a '(__skep_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def options_completion(parser: ArgumentParser) -> None:
    """Add what `completion` takes."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell")


def run_completion(arguments: Namespace) -> int:
    """Print the script of a shell.

    Returns:
        The exit code: always 0.
    """
    script = SCRIPTS[arguments.shell]
    if arguments.json:
        print_json({"shell": arguments.shell, "script": script})
    else:
        print(script, end="")
    return exits.OK


COMMANDS = {"completion": Command(options_completion, run_completion)}
