# gpufleet: everyday commands. `make` or `make help` lists them.
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Tools of the repository run with its own settings wherever make was called from.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
NODE ?= lab-node-1

.DEFAULT_GOAL := help
.PHONY: help setup setup-all node-health demo lab-up lab-down lab-status lab-ssh lab-reset test test-fast lint bench docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what a controller needs (packages, Python environment in .venv)
	@tools/setup

setup-all: ## the same, with what the virtual lab and the container tests need
	@tools/setup lab/system_packages.txt tools/container_packages.txt

node-health: setup ## build build/node-health, the health check as one file: make node-health PROFILE=profiles/x.yml
	@python tools/build_node_health.py $(if $(PROFILE),--profile $(PROFILE))

demo: ## build the virtual node and bring it up with site.yml
	@tools/setup lab/system_packages.txt
	python -m lab up
	ansible-playbook site.yml
	@echo
	@echo "The node is still running. Look at it: make lab-ssh    Stop it: make lab-down"
	@echo "Run ansible-playbook site.yml again (after: source .venv/bin/activate): nothing changes."

lab-up: ## start the virtual node(s) of inventories/lab
	@tools/setup lab/system_packages.txt
	python -m lab up

lab-down: ## stop the virtual node(s)
	python -m lab down

lab-status: ## say which virtual nodes run, and where their logs are
	python -m lab status

lab-ssh: ## open a shell on a node: make lab-ssh NODE=lab-node-1
	python -m lab ssh $(NODE)

lab-reset: ## throw away what was done to a node and boot it fresh: make lab-reset NODE=lab-node-1
	python -m lab reset $(NODE)

test: setup-all ## run all tests, with containers and the virtual node (up to 90 minutes on 2 cores)
	@python tools/run_tests.py

test-fast: setup-all ## run the tests that need neither containers nor the node (8 minutes at most)
	@python tools/run_tests.py --fast

lint: setup ## static checks only
	@python tools/run_tests.py --only static

bench: setup ## count host-tasks and controller time on the running lab node, then 511 simulated hosts
	bench/host_tasks --playbook site.yml --hosts 511

docs: setup ## write the list of health checks in docs/health-checks.md
	python tools/write_check_list.py

lock: setup ## renew the lock files of requirements/ after changing a pin
	cd requirements && for name in run dev; do \
	  env PIP_CONFIG_FILE=/dev/null pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --no-header \
	    -o $$name.txt $$name.in || exit 1; done

clean: ## remove reports and build results (not the caches outside the repository)
	rm -rf build reports .pytest_cache .mypy_cache .ruff_cache
