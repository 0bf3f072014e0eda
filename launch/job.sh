#!/usr/bin/env bash
# Runs dapo-jax once, on this machine, and says by its status what is next.
#
#   launch/job.sh WORKDIR FOLDER COMMAND [FLAGS]
#
# WORKDIR is a folder of this machine. FOLDER, of a bucket or '', gets the
# checkpoints and a copy of WORKDIR, which comes back where WORKDIR is empty.
# What FOLDER has in input/ is brought to input/, where the command is run. The
# other scripts of this folder call this one. Its exit status is
#
#   0    done
#   75   stopped by a signal, and saved: the same command goes on
#   2    the user has something to change; the same command fails again
#   else a fault
#
# In DAPO_JAX_RUN, a folder (default WORKDIR/.launch), it leaves its process id
# and its exit status.
set -euo pipefail
source "$(dirname "$0")/shared.sh"

if (($# < 3)); then
  usage
  exit "$USERS_ERROR"
fi
workdir=$1 folder=$2
shift 2
command=$1
need_command dapo-jax
bin=$(dirname "$(command -v dapo-jax)")
mirror=("$bin/python" "$ROOT/launch/mirror.py")
notes=${DAPO_JAX_RUN:-$workdir/.launch}
child='' copier='' was_asked=false

# Whether this is the process that writes WORKDIR; the variables are GKE's.
is_first() {
  [[ ${DAPO_JAX_FIRST:-true} == true && ${MEGASCALE_SLICE_ID:-0} == 0 &&
    ${TPU_WORKER_ID:-0} == 0 ]]
}

# Passes a signal on. dapo-jax takes a second SIGTERM for an echo.
pass_on() {
  was_asked=true
  signals=$((signals + 1))
  if [[ $child ]]; then kill -TERM "$child" 2>/dev/null || true; fi
}

# Takes the place of a status that does not say what is next.
meaning() {
  local status=$1
  if [[ $status == 0 && $command != eval ]] && is_first &&
    [[ ! $workdir/model/config.json -nt $notes/begun ]]; then
    # Of several processes all end with 0 when one was asked to stop.
    status=$STOPPED
  elif [[ $status == 13[07] || $status == 143 ]] && $was_asked; then
    status=$STOPPED
  elif [[ $status == "$USERS_ERROR" ]] &&
    grep -q 'did not find each other' "$notes/errors"; then
    status=1 # a machine was late, or lost
  fi
  echo "$status"
}

# Begins to copy WORKDIR now and then.
copy_along() {
  "${mirror[@]}" put "$workdir" "$folder/workdir" \
    --every="${DAPO_JAX_COPY_S:-300}" &
  copier=$!
}

# Copies it a last time.
copy_last() {
  kill -TERM "$copier" 2>/dev/null || true
  wait "$copier" || true
  "${mirror[@]}" put "$workdir" "$folder/workdir" ||
    say "the last lines of $workdir are not in $folder/workdir"
}

# Runs it in the background, so that signals are heard meanwhile, its errors
# kept as well as shown. What keeps them must outlive the signals.
execute() {
  local errors keeper status=0
  exec {errors}> >(trap '' TERM INT && exec tee "$notes/errors" >&2)
  keeper=$!
  "$bin/dapo-jax" "$@" 2>&"$errors" 3>&- {errors}>&- &
  child=$!
  exec {errors}>&-
  if $was_asked; then pass_on; fi
  wait_for "$child" || status=$?
  wait "$keeper" || true
  return "$status"
}

main() {
  local status=0
  mkdir -p "$workdir" "$notes"
  echo $$ >"$notes/pid"
  trap 'echo $? >"$notes/exit_status"' EXIT
  trap pass_on TERM INT
  set -- "$@" "--workdir=$workdir"
  if [[ $folder ]]; then
    set -- "$@" "--config.checkpoint.folder=$folder/checkpoints"
    "${mirror[@]}" get "$folder/input" input --replace
    if is_first; then
      "${mirror[@]}" get "$folder/workdir" "$workdir"
      copy_along
    fi
  fi
  touch "$notes/begun"
  say "dapo-jax $(quoted "$@")"
  execute "$@" || status=$?
  status=$(meaning "$status")
  if [[ $copier ]]; then copy_last; fi
  say "job.sh ends with status $status"
  return "$status"
}

main "$@"
