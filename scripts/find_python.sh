#!/bin/sh
# Prints the path of a Python interpreter; prints nothing and fails when there is none.
#
#   scripts/find_python.sh                 the first one that the project runs on
#   scripts/find_python.sh 3.12            that minor version: on PATH, or else the newest one that pyenv holds
#   scripts/find_python.sh --oldest 3.12   the oldest patch release of that version, on PATH or held by pyenv
#
# A name on PATH proves nothing (pyenv's shims exist for versions that are switched off), so each is run.
set -u

runs() { # runs COMMAND CONDITION: prints the patch number and the interpreter's own path when CONDITION holds there
    "$1" -c "import sys; sys.exit(print(sys.version_info[2], sys.executable) if $2 else 1)" 2>/dev/null
}

candidates() { # candidates X.Y
    printf '%s\n' "$PATH" | tr : '\n' | sed "s|\$|/python$1|"
    pyenv=$(command -v pyenv) || return
    # `pyenv root` looks in HOME, which may be another one than pyenv was installed for.
    for root in "$(pyenv root 2>/dev/null)" "$(dirname "$(dirname "$pyenv")")"; do
        printf '%s\n' "$root/versions/$1".* | sort -t . -k 3 -n -r | sed "s|\$|/bin/python$1|"
    done
}

every() { # every X.Y: prints what runs() does for each that works
    candidates "$1" | while IFS= read -r command; do
        runs "$command" "(3, 11, 2) <= sys.version_info and '%d.%d' % sys.version_info[:2] == '$1'"
    done
}

if [ $# -eq 0 ]; then
    found=$(for name in python3 python3.13 python3.12 python3.11 python; do
        runs "$name" 'sys.version_info >= (3, 11, 2)' && exit
    done
    for version in 3.13 3.12 3.11; do
        every "$version"
    done)
elif [ "$1" = --oldest ]; then
    found=$(every "$2" | sort -n -s -k 1,1)
else
    found=$(every "$1")
fi
[ -n "$found" ] && printf '%s\n' "$found" | sed '1!d; s/^[0-9]* //'
