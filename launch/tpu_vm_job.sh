# shellcheck shell=bash disable=SC2154
# The run of tpu_vm.sh: installed, started, followed, and started again until
# it is done. Sourced by it, not run.

readonly STATES='(running|ended|asked|absent) [-0-9]+ [0-9]+ [0-9]+$'

# worker ACTION [WORD...]: the command that a worker runs. The name of the
# folder is the run's, so that one machine can have several.
worker() {
  local run="\$HOME/dapo_jax_runs/$name" action=$1
  shift
  echo "bash \"$run/source/launch/worker.sh\" $action \"$run\"" \
    "$(quoted "$@")"
}

# Packs the commit, and sets `packed`.
pack() {
  packed=$(mktemp -d)/dapo_jax_$name.tar.gz
  run git -C "$ROOT" archive --format=tar.gz "--output=$packed" "$ref"
}

# A worker that runs already keeps what it has.
unpacked_and_installed() {
  local run="dapo_jax_runs/$name" commit
  commit=$(git -C "$ROOT" rev-parse "$ref")
  printf '%s; ' "set -e" "mkdir -p $run" \
    "flock --nonblock $run/lock true || exit 0" \
    "if ! grep -sqx $commit $run/commit" "then rm -rf $run/source $run/commit" \
    "mkdir $run/source" "tar -xzf dapo_jax_$name.tar.gz -C $run/source" \
    "echo $commit > $run/commit" "fi"
  worker install "$extras"
}

install() {
  local packed
  pack || return
  say "installing $(git -C "$ROOT" rev-parse --short "$ref"), some minutes"
  at_once copy_to_node "$packed" "dapo_jax_$name.tar.gz" || return
  rm -rf "$(dirname "$packed")"
  on_nodes all "$(unpacked_and_installed)"
}

# The first worker of the first node writes the logs. What runs already stays.
start() {
  local id
  id=$(date +%s)-$$
  say "starting: dapo-jax $(quoted "${job[@]}")"
  on_node "${nodes[0]}" 0 "$(worker start "$id" first "$folder" "${job[@]}")" ||
    return
  on_nodes all "$(worker start "$id" other "$folder" "${job[@]}")"
}

# What the log of the first worker has from a line on; returns when the job
# there has ended, or the connection has. `lines` counts what was shown.
follow_from() {
  local line
  lines=$(($1 - 1))
  while IFS= read -r line; do
    printf '%s\n' "$line"
    lines=$((lines + 1))
  done < <(on_node "${nodes[0]}" 0 "$(worker follow "$1")")
}

# What the workers say of themselves, a line each.
statuses() {
  if $dry_run; then
    on_nodes all "$(worker status)"
    echo 'first ended 0 0 0'
    return
  fi
  on_nodes all "$(worker status)" 2>/dev/null | grep -Eo "(first|other) $STATES"
}

# Sets `verdict` to what all of them mean: running, absent, done, stopped, asked
# (to stop), wrong (the user's error), failed or lost (no worker answers);
# `step`, the last one that is known; `code`; and `logged`, lines of the log.
step=0
judge() {
  local found first state
  verdict=lost logged=0
  found=$(statuses) || return 0
  first=$(grep '^first' <<<"$found") || return 0
  read -r _ state code step logged <<<"$first"
  if grep -q ' running ' <<<"$found"; then
    verdict=running
    [[ $state == running ]] || verdict=ending
  elif [[ $state == asked ]]; then
    verdict=asked
  elif grep -q " ended $USERS_ERROR " <<<"$found"; then
    verdict=wrong # where it came from; the others end with 1
  elif [[ $state == absent ]]; then
    verdict=absent
  else
    case $code in
      0) verdict='done' ;;
      "$STOPPED") verdict=stopped ;;
      *) verdict=failed ;;
    esac
  fi
}

# Follows until nothing runs any more; shows only what was not shown.
follow() {
  local waited_s=0 silences=0
  while true; do
    follow_from "$((lines + 1))" || true
    judge
    case $verdict in
      running)
        say 'the connection broke; the run goes on'
        pause "$poll"
        ;;
      ending)
        # dapo-jax ends the others within two minutes.
        if ((waited_s > 180)); then on_nodes all "$(worker stop)" || true; fi
        pause "$poll"
        waited_s=$((waited_s + ${poll%.*} + 1))
        ;;
      lost)
        silences=$((silences + 1))
        if ((silences > 10)) || [[ $(look) != ready* ]]; then return; fi
        say "the workers of $name do not answer"
        pause "$poll"
        ;;
      *) return ;;
    esac
  done
}

# Says what ended the run, and returns where it may be started again.
may_start_again() {
  local found
  need_look
  heed_deletion
  if [[ $found == *DELETING ]]; then
    say "$name is being deleted"
    return
  elif [[ $found != ready* ]]; then
    say "preempted or lost: $name is ${found#* }; the run goes on from what" \
      "is in $folder"
    return
  fi
  case $verdict in
    unstarted) say 'it could not be installed or started, see above' ;;
    lost) say "the workers of $name did not answer for long" ;;
    stopped) say "stopped by a signal at step $step" ;;
    failed) say "the run failed at step $step with status $code" ;;
    wrong)
      fail "the run refused what it was given, see the line with error above" \
        "or that of another worker ($(quoted gcloud compute tpus tpu-vm ssh \
          "${nodes[0]}" "${where[@]}" --worker=all \
          "--command=tail -n 3 dapo_jax_runs/$name/log.txt"))"
      ;;
  esac
  may_go_on "$step" || fail "given up at step $step after $failures failures" \
    "in a row without a new step (--max-failures)"
}

# The nodes come first: workers cannot be asked without them.
begin() {
  need_nodes || return
  judge
  lines=0
  if [[ $verdict == running || $verdict == ending ]]; then
    say "it runs already, at step $step; the last lines of its log:"
    lines=$((logged > 20 ? logged - 20 : 0))
    return
  fi
  install && start
}

until_done() {
  local tries=0
  while true; do
    if begin; then
      follow
    else
      verdict=unstarted
    fi
    case $verdict in
      'done')
        $dry_run || say "done; what it wrote is in $folder"
        return
        ;;
      asked)
        say "stopped on request at step $step; the same command goes on"
        exit "$STOPPED"
        ;;
    esac
    may_start_again
    tries=$((tries + 1))
    say "start $((tries + 1))"
    pause "$poll"
  done
}
