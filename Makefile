# `make demo` shows nsq_ha at work, `make test` is the whole gate. Nothing but Python 3.11.2+ and make has to be there.

VENV ?= .venv
PYTHON ?= $(shell scripts/find_python.sh)
VERSIONS ?= 3.11 3.12 3.13

bin = $(VENV)/bin
REQUIREMENTS ?= requirements/dev.txt
LOCKED = requirements/build.txt $(REQUIREMENTS)
FLOOR = .venv-spark-floor
MUTATION = .venv-mutation
FUZZ = .venv-fuzz
DOCS = .venv-docs
RELEASE = .venv-release

# Spark's workers would otherwise run the first python3 on PATH, and its ports would listen on every interface.
export PYSPARK_PYTHON = $(abspath $(bin)/python)
export SPARK_LOCAL_IP = 127.0.0.1

.PHONY: help demo test test-full spark-floor quick bench mutants fuzz pictures reference docs dist lock setup clean

help:
	@echo 'make demo [ARGS=...]   set up .venv, then run the demo of examples/flights'
	@echo 'make test              the gate: format, lint, types, layers, tests in their short forms, coverage, docs'
	@echo 'make quick             only the pure tests (protocol, policy)'
	@echo 'make test-full         the gate and the slow tests on each of Python $(VERSIONS) that is installed, in its oldest'
	@echo '                       patch release, then spark-floor'
	@echo 'make spark-floor       the Spark tests on the oldest PySpark that is promised'
	@echo 'make bench [ARGS=...]  the benchmarks: guard, and peers, ha, growth and spark where servers are given'
	@echo 'make mutants [ARGS=...] mutation testing of policy, protocol, the machines, producer, consumer, engine, chain'
	@echo 'make fuzz [ARGS=...]   fuzz what reads bytes from outside, a minute for each target; Python 3.11 to 3.13'
	@echo 'make pictures [ARGS=...] the pictures of the README and the pages, of runs on this machine; needs Chromium'
	@echo 'make reference         options, errors, calls and the protocol as Markdown, to reference/'
	@echo 'make docs              the documentation, to docs/_build/html'
	@echo 'make dist              wheel and sdist, tried out in empty environments'
	@echo 'make lock              renew requirements/*.txt'
	@echo 'make clean             remove what the above made'

# Only what it needs: half of what the tests need, which `make test` adds.
demo:
	@$(MAKE) --no-print-directory setup REQUIREMENTS=requirements/demo.txt
	@$(bin)/python -m examples.flights $(ARGS)

test: setup
	@$(bin)/python scripts/gate.py

quick: setup
	@$(bin)/python -m pytest -q tests/protocol tests/policy

test-full:
	@failed=; ran=; \
	for version in $(VERSIONS); do \
	    python=$$(scripts/find_python.sh --oldest $$version) || { echo "Python $$version: not installed, skipped"; continue; }; \
	    printf '\n##### %s (%s)\n' "$$($$python --version)" "$$python"; ran="$$ran $$version"; \
	    NSQ_HA_FULL=1 $(MAKE) --no-print-directory test PYTHON="$$python" VENV=".venv-$$version" || failed="$$failed $$version"; \
	done; \
	$(MAKE) --no-print-directory spark-floor || failed="$$failed spark-floor"; \
	printf '\nran the gate on:%s; failed on:%s\n' "$${ran:- none}" "$${failed:- none}"; \
	test -n "$$ran" && test -z "$$failed"

# An environment of its own: requirements/spark-floor.txt is dev.txt's with that PySpark.
spark-floor: export PYSPARK_PYTHON = $(abspath $(FLOOR)/bin/python)
spark-floor:
	@$(MAKE) --no-print-directory setup VENV=$(FLOOR) REQUIREMENTS=requirements/spark-floor.txt
	@echo '##### PySpark' && $(FLOOR)/bin/python -m pip show pyspark | grep Version
	@$(FLOOR)/bin/python -m pytest -q tests/spark integration/test_spark*.py

bench: setup
	@$(bin)/python -m benchmarks $(ARGS)

pictures: setup
	@$(bin)/python scripts/pictures.py $(ARGS)

mutants:
	@$(MAKE) --no-print-directory setup VENV=$(MUTATION) REQUIREMENTS=requirements/mutation.txt
	@$(MUTATION)/bin/python -m scripts.mutants $(ARGS)

# There is no wheel of the fuzzer for newer versions.
fuzz: PYTHON = $(firstword $(foreach version,3.13 3.12 3.11,$(shell scripts/find_python.sh $(version))))
fuzz:
	@$(MAKE) --no-print-directory setup VENV=$(FUZZ) REQUIREMENTS=requirements/fuzz.txt PYTHON=$(PYTHON)
	@$(FUZZ)/bin/python -m fuzz $(ARGS)

reference: setup
	@$(bin)/python scripts/reference.py

# An environment of its own, without tests, linters and Spark. All pages are read again: for those that are not, Sphinx
# leaves the index entries out of the search.
docs:
	@$(MAKE) --no-print-directory setup VENV=$(DOCS) REQUIREMENTS=requirements/docs.txt
	@$(DOCS)/bin/python -m sphinx -n -W -q -E -b html docs docs/_build/html && echo 'open docs/_build/html/index.html'

# Only the tools: what is built gets environments of its own.
dist: $(RELEASE)/.locked
	@$(RELEASE)/bin/python scripts/dist.py

$(RELEASE)/.locked: requirements/build.txt requirements/release.txt
	@scripts/setup.sh "$(RELEASE)" "$(PYTHON)" requirements/release.txt
	@touch $@

# The stamps make set-up a matter of milliseconds when nothing changed.
setup: $(VENV)/.project
	@:

$(VENV)/.locked-$(notdir $(REQUIREMENTS)): $(LOCKED)
	@scripts/setup.sh "$(VENV)" "$(PYTHON)" $(REQUIREMENTS)
	@touch $@

$(VENV)/.project: $(VENV)/.locked-$(notdir $(REQUIREMENTS)) pyproject.toml
	@$(bin)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(bin)/python -m pip check
	@touch $@

COMPILE = .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11.2 --fork-strategy fewest \
    --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make lock'

lock: requirements/lock.txt
	@test -x .venv-lock/bin/uv || $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --require-hashes -r requirements/lock.txt
	$(COMPILE) --group pyproject.toml:lock -o requirements/lock.txt
	$(COMPILE) --group pyproject.toml:build -o requirements/build.txt
	$(COMPILE) --group pyproject.toml:release -o requirements/release.txt
	$(COMPILE) pyproject.toml --extra all --group pyproject.toml:dev -o requirements/dev.txt
	cp requirements/dev.txt requirements/demo.txt # the same versions of all else
	$(COMPILE:--upgrade=) pyproject.toml --extra cluster --extra cli --extra spark --extra uvloop -o requirements/demo.txt
	cp requirements/dev.txt requirements/docs.txt
	$(COMPILE:--upgrade=) pyproject.toml --extra cluster --extra cli --extra otel --group pyproject.toml:docs -o requirements/docs.txt
	cp requirements/dev.txt requirements/spark-floor.txt
	$(COMPILE:--upgrade=) pyproject.toml --extra all --group pyproject.toml:spark-floor -o requirements/spark-floor.txt
	cp requirements/dev.txt requirements/mutation.txt
	$(COMPILE:--upgrade=) pyproject.toml --extra all --group pyproject.toml:mutation -o requirements/mutation.txt
	cp requirements/dev.txt requirements/fuzz.txt
	$(COMPILE:--upgrade=) pyproject.toml --extra cli --extra filters --extra spark-worker --group pyproject.toml:fuzz \
	    -o requirements/fuzz.txt
	@! grep -n '://' requirements/*.txt

clean:
	rm -rf .venv .venv-* build dist docs/_build .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache .hypothesis .mutation
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
