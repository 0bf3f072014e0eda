#!/usr/bin/env bash
# Trains on this machine, to the end: what is killed is started again. The same
# command goes on where it stopped; Ctrl-C saves and stops.
#
#   launch/local.sh --workdir=DIR [OPTIONS] -- train --config=FILE [FLAGS]
#
#   --workdir=DIR    folder of the run
#   --processes=N    that share the run, on 127.0.0.1, by CPU (default 1)
#   --devices=N      virtual ones of each, of the CPU (default: what there is)
#   --max-failures=N in a row without a new step, then it gives up (default 3)
#   --pause=SECONDS  before it is started again (default 5)
#   --dry-run        print the commands and run none
#
# dapo-jax is that of PATH, or of .venv/ in this repository.
set -euo pipefail
source "$(dirname "$0")/shared.sh"

sets_folder=false
workdir='' processes=1 devices='' pause_s=5
job=() pids=() statuses=() was_asked=false

parse() {
  local value
  while (($#)); do
    value=${1#*=}
    case $1 in
      --help | -h) usage && exit 0 ;;
      --) job=("${@:2}") && break ;;
      --workdir=*) workdir=$value ;;
      --processes=*) processes=$value ;;
      --devices=*) devices=$value ;;
      --max-failures=*) max_failures=$value ;;
      --pause=*) pause_s=$value ;;
      --dry-run) dry_run=true ;;
      *) fail "there is no option $1; see $0 --help" ;;
    esac
    shift
  done
}

check() {
  [[ $workdir ]] || fail '--workdir=DIR is required: the folder of the run'
  [[ $workdir != *://* ]] ||
    fail "--workdir ($workdir) must be a folder of this machine"
  need_count --processes "$processes"
  [[ ! $devices ]] || need_count --devices "$devices"
  need_count --max-failures "$max_failures"
  need_seconds --pause "$pause_s"
  need_job "${job[@]}"
  if [[ ! $(type -t dapo-jax) ]]; then PATH=$ROOT/.venv/bin:$PATH; fi
  need_command dapo-jax
}

stop() {
  was_asked=true
  signals=$((signals + 1))
  if ((${#pids[@]})); then kill -TERM "${pids[@]}" 2>/dev/null || true; fi
}

log_of() {
  echo "$workdir/.launch/$1/log.txt"
}

# start_process NUMBER PORT: the first one prints, the others have logs.
start_process() {
  local notes=$workdir/.launch/$1 words=(env)
  words+=("DAPO_JAX_RUN=$notes" "DAPO_JAX_FIRST=$( (($1)) && echo false ||
    echo true)")
  if ((processes > 1)) || [[ $devices ]]; then words+=(JAX_PLATFORMS=cpu); fi
  if [[ $devices ]]; then
    words+=("XLA_FLAGS=--xla_force_host_platform_device_count=$devices")
  fi
  words+=(bash "$ROOT/launch/job.sh" "$workdir" '' "${job[@]}")
  if ((processes > 1)); then
    words+=("--coordinator=127.0.0.1:$2" "--processes=$processes"
      "--process=$1")
  fi
  if $dry_run; then
    run "${words[@]}"
  elif (($1)); then
    "${words[@]}" >"$(log_of "$1")" 2>&1 3>&- &
    pids+=($!)
  else
    "${words[@]}" 3>&- &
    pids+=($!)
  fi
}

# Runs all of them once; sets `statuses`.
run_once() {
  local i pid status port=$((20000 + RANDOM % 20000))
  pids=() statuses=()
  for ((i = 0; i < processes; i++)); do
    $dry_run || mkdir -p "$workdir/.launch/$i"
    start_process "$i" "$port"
  done
  if $was_asked; then stop; fi
  for pid in "${pids[@]}"; do
    status=0
    wait_for "$pid" || status=$?
    statuses+=("$status")
  done
}

# Shows how the processes ended that do not print.
show_others() {
  local i
  for ((i = 1; i < processes; i++)); do
    say "process $i ended with ${statuses[i]}; the end of $(log_of "$i"):"
    tail -n 3 "$(log_of "$i")" | sed 's/^/  /'
  done
}

main() {
  local step
  trap stop INT TERM
  while true; do
    run_once
    if $dry_run || [[ ${statuses[0]} == 0 ]]; then return; fi
    step=$(last_step "$workdir")
    if $was_asked; then
      say "stopped at step $step; the same command goes on"
      exit "$STOPPED"
    fi
    show_others
    if [[ " ${statuses[*]} " == *" $USERS_ERROR "* ]]; then
      fail 'the run refused what it was given, see above'
    fi
    say "ended with status ${statuses[0]} at step $step"
    may_go_on "$step" || fail "given up at step $step after $failures" \
      "failures in a row without a new step (--max-failures)"
    say 'starting again'
    pause "$pause_s"
  done
}

parse "$@"
check
main
