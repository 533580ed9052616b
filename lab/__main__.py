# SPDX-License-Identifier: Apache-2.0
"""`python -m lab`: see `python -m lab --help`."""

from lab.cli import main

raise SystemExit(main())
