# SPDX-License-Identifier: Apache-2.0
"""Logic that runs on nodes. Ansible ships a package's modules to a node only where the package has this file."""
