#!/usr/bin/env bash
# Checks the wheel in dist/, installed alone: its content, its programs, and a short run of a server.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
uv=$("$root/tools/uv.sh")
scratch=$(mktemp -d)
server=

cleanup() {
  status=$?
  trap - EXIT INT TERM
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    aliquot down >/dev/null 2>&1 || kill "$server" 2>/dev/null || true  # down also stops jobs
    wait "$server" 2>/dev/null || true
  fi
  if [ "$status" -ne 0 ] && [ -s "$scratch/up.log" ]; then
    echo "--- the server's log" >&2
    cat "$scratch/up.log" >&2
  fi
  rm -rf "$scratch"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() { echo "smoke: $*" >&2; exit 1; }

# shows COMMAND... -- PATTERN: the command succeeds, and a line of its output matches
shows() {
  local command=() out
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  out=$("${command[@]}" 2>&1) || fail "${command[*]} ended with $?: $out"
  grep -Eq -- "$2" <<<"$out" || fail "${command[*]} printed no line like '$2': $out"
}

# refuses COMMAND... -- PATTERN: the command fails with exit status 1, and a line of its output matches
refuses() {
  local command=() out status=0
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  out=$("${command[@]}" 2>&1) || status=$?
  [ "$status" -eq 1 ] || fail "${command[*]} ended with $status instead of 1: $out"
  grep -Eq -- "$2" <<<"$out" || fail "${command[*]} printed no line like '$2': $out"
}

# eventually COMMAND... -- PATTERN: like shows, but retries for a minute
eventually() {
  local command=() out
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  for _ in $(seq 300); do
    if out=$("${command[@]}" 2>&1) && grep -Eq -- "$2" <<<"$out"; then return; fi
    sleep 0.2
  done
  fail "${command[*]} never printed a line like '$2': $out"
}

# --- the wheel
shopt -s nullglob
wheels=("$root"/dist/*.whl)
[ ${#wheels[@]} -eq 1 ] || fail "dist/ must hold one wheel, not ${#wheels[@]}; run make wheel"
wheel=${wheels[0]}
case $wheel in *-py3-none-any.whl) ;; *) fail "$(basename "$wheel") is not for every platform (py3-none-any)" ;; esac
python3 -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }' > "$scratch/contents"
grep -Eq '^aliquot-[^/]+\.dist-info/licenses/LICENSE$' "$scratch/contents" || fail "the wheel has no licence"
if unexpected=$(grep -Ev '^aliquot(/|-[^/]+\.dist-info/)' "$scratch/contents"); then fail "the wheel holds more than the package: $unexpected"; fi
if unexpected=$(grep -E '(^|/)(tests?|conftest\.py|test_[^/]*)(/|$)|__pycache__' "$scratch/contents"); then fail "the wheel holds tests or caches: $unexpected"; fi

# --- installed alone: nothing of the checkout may be imported
cd "$scratch"
unset PYTHONPATH VIRTUAL_ENV
while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^(ALIQUOT|RUNAI)_' || true)
"$uv" venv --quiet "$scratch/venv"
"$uv" pip install --quiet --python "$scratch/venv/bin/python" "$wheel"
export PATH="$scratch/venv/bin:$PATH" HOME="$scratch/home" ALIQUOT_DATA_DIR="$scratch/data" NO_COLOR=1
export XDG_CONFIG_HOME="$HOME/.config"
mkdir -p "$HOME"
imported=$(python -c 'import aliquot; print(aliquot.__file__)')
case $imported in "$scratch"/*) ;; *) fail "aliquot was imported from $imported" ;; esac
for program in aliquot runai runai-adm; do shows "$program" --help -- "^Usage: $program "; done
shows aliquot version -- "^aliquot $(basename "$wheel" | cut -d- -f2)\$"

# --- a short run of a server
aliquot up --port 0 --simulate demo >"$scratch/up.log" 2>&1 &
server=$!
for _ in $(seq 600); do
  [ -f "$scratch/data/server.json" ] && break
  kill -0 "$server" 2>/dev/null || fail "aliquot up ended by itself"
  sleep 0.1
done
shows aliquot status -- '^Ready: +yes$'
shows aliquot project create smoke --gpu 2 -- '^project/smoke created$'
shows runai project list -- '^smoke +default +2 '
shows runai project set smoke -- '^project smoke configured '
shows runai submit train1 -i gcr.io/run-ai-demo/quickstart -g 0.5 -- '^Job train1 submitted successfully'
eventually runai list -- '^train1 +Running .* dgx1-[12] '
eventually runai logs train1 -- '^ *1/60 .* loss: '
shows runai exec train1 cat /proc/self/comm -- '^cat$'
shows runai submit once -i ubuntu --command echo --args hello -- '^Job once submitted successfully'
eventually runai logs once -- '^hello$'
shows runai delete train1 once -- '^Job train1 deleted successfully'
cat > half.yaml <<'YAML'
apiVersion: aliquot.dev/v1
kind: Template
metadata: {name: half-gpu, namespace: runai-smoke}
spec: {values: {image: pytorch, compute: {gpu: 0.5}}}
YAML
shows aliquot apply -f half.yaml -- '^template/half-gpu created$'
shows aliquot apply -f half.yaml -- '^template/half-gpu unchanged$'
shows aliquot get templates -p smoke -- '^half-gpu '
refuses aliquot project update smoke --gpu many -- "^error: --gpu: .*'many'"
shows aliquot delete template half-gpu -p smoke -- '^template/half-gpu deleted$'
shows aliquot project delete smoke --yes -- '^project/smoke deleted$'
shows aliquot down -- '^server stopped '
wait "$server" || fail "the server ended with $?"
server=
refuses aliquot status -- '^error: no server is running'
if [ "$(stat -c %a "$scratch/data/admin.token")" != 600 ]; then fail "admin.token can be read by others"; fi
echo "smoke: $(basename "$wheel") works"
