#!/bin/sh
# Makes or brings up to date a virtual environment from hash-locked requirements. Called by the Makefile.
#
#   scripts/setup.sh VENV PYTHON REQUIREMENTS
#
# Every download is checked against requirements/*.txt. Packages that come only as source are built with the locked
# build tools, not with whatever an isolated build would fetch.
set -eu

venv=$1 python=$2 requirements=$3
run() { "$venv/bin/python" -m "$@"; }

if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11, 2))' 2>/dev/null; then
    echo "set-up: Python 3.11.2 or newer is needed; name one with: make PYTHON=/path/to/python3" >&2
    exit 1
fi

if ! run pip --version >/dev/null 2>&1; then
    echo "set-up: making $venv with $("$python" --version)"
    # The pip from outside spares the unpacking of another one, and Debian ships venv without one unless python3-venv is
    # installed.
    { "$python" -m venv --clear --without-pip "$venv" &&
        "$python" -m pip --python "$venv/bin/python" install --quiet --require-hashes -r requirements/build.txt; } \
        >/dev/null 2>&1 || "$python" -m venv --clear "$venv" ||
        { echo "set-up: this Python can make no environment with pip; on Debian: apt-get install python3-venv" >&2; exit 1; }
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
echo "set-up: installing $requirements"
if grep -q '^pyspark==' "$requirements"; then
    size=1.5; case "$requirements" in *demo.txt) size=0.8 ;; esac
    echo "set-up: the first time that downloads more than half a gigabyte, most of it PySpark with its Java libraries, and"
    echo "set-up: takes some quiet minutes and $size GB on disk"
fi
run pip install --quiet --require-hashes -r requirements/build.txt
# What is imported is compiled then, which is a small part of it. PySpark comes as source, and its wheel is unpacked at
# once: to compress it takes half a minute.
DIST_EXTRA_CONFIG=$(pwd)/requirements/build.cfg
export DIST_EXTRA_CONFIG
run pip install --quiet --no-compile --require-hashes --no-build-isolation -r "$requirements"
