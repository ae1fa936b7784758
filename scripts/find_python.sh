#!/bin/sh
# Prints the path of a Python interpreter; prints nothing and fails when there is none.
#
#   scripts/find_python.sh        the first 3.11 or newer
#   scripts/find_python.sh 3.12   that minor version: on PATH, or else the newest one that pyenv holds
#
# A name on PATH proves nothing (pyenv's shims exist for versions that are switched off), so each is run.
set -u

runs() { # runs COMMAND CONDITION: prints the interpreter's own path when CONDITION holds there
    "$1" -c "import sys; sys.exit(print(sys.executable) if $2 else 1)" 2>/dev/null
}

if [ $# -eq 0 ]; then
    for name in python3 python3.13 python3.12 python3.11 python; do
        runs "$name" 'sys.version_info >= (3, 11)' && exit 0
    done
    for version in 3.13 3.12 3.11; do
        "$0" "$version" && exit 0
    done
    exit 1
fi

condition="'%d.%d' % sys.version_info[:2] == '$1'"
runs "python$1" "$condition" && exit 0
if pyenv=$(command -v pyenv); then
    # `pyenv root` looks in HOME, which may be another one than pyenv was installed for.
    for root in "$(pyenv root 2>/dev/null)" "$(dirname "$(dirname "$pyenv")")"; do
        for directory in $(printf '%s\n' "$root/versions/$1".* | sort -t . -k 3 -n -r); do
            runs "$directory/bin/python$1" "$condition" && exit 0
        done
    done
fi
exit 1
