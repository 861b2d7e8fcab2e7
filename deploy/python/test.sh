#!/usr/bin/env bash
# Tests of the Python package: in a venv of their own, against real routers and simulated engines.
#
#   test.sh [--wheel] [PYTEST WORDS...]
#
# Without --wheel the sources are tested, with the programs of target/debug (built here unless
# PD_ROUTER_BIN and PD_SIM_BIN name others). With --wheel both distributions are built and installed into
# a fresh venv, and what pip put there is tested; PROFILE=dev builds the program without optimisation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
wheel=
if [[ ${1:-} == --wheel ]]; then
    wheel=1
    shift
fi

if [[ -z ${PD_SIM_BIN:-} ]]; then
    (cd "$root" && cargo build --locked -p pd-sim)
    export PD_SIM_BIN=$root/target/debug/pd-sim
fi

# venv FOLDER PACKAGES...: a venv with these packages, kept between runs
venv() {
    local at=$1
    shift
    [[ -x $at/bin/python ]] || python3 -m venv "$at"
    "$at/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

needs=('pytest>=8' 'pytest-timeout>=2' 'pyyaml>=6' 'openai>=1')
tools=$root/target/python/tools
if [[ -n $wheel ]]; then
    venv "$tools" 'maturin>=1.7,<2' 'build>=1.2'
    dist=$root/target/python/dist
    rm -rf "$dist" "$root/target/python/installed"
    (cd "$here" && "$tools/bin/maturin" build --locked --profile "${PROFILE:-release}" --out "$dist")
    "$tools/bin/python" -m build --quiet --wheel --outdir "$dist" "$here/../python-vllm-router"
    venv "$root/target/python/installed" "${needs[@]}" "$dist"/*.whl
    python=$root/target/python/installed/bin/python
    unset PD_ROUTER_BIN PYTHONPATH
    # the two commands that pip made
    for command in pd-router vllm-router; do
        "$root/target/python/installed/bin/$command" --version
    done
    export PD_ROUTER_INSTALLED=1
else
    if [[ -z ${PD_ROUTER_BIN:-} ]]; then
        (cd "$root" && cargo build --locked -p pd-router)
        export PD_ROUTER_BIN=$root/target/debug/pd-router
    fi
    venv "$tools" "${needs[@]}"
    python=$tools/bin/python
fi
cd "$here"
exec "$python" -m pytest -p no:cacheprovider "$@"
