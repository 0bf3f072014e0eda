# shellcheck shell=bash disable=SC2034,SC2154
# The TPU VMs of tpu_vm.sh: made, waited for, reached and deleted with gcloud.
# Sourced by it, not run.
#
# A node is the TPU VM of one slice. It has one worker a host.

# One queued resource has one node of its own name, or several.
name_nodes() {
  local i
  nodes=("$name")
  if ((slices > 1)); then
    nodes=()
    for ((i = 0; i < slices; i++)); do nodes+=("$name-$i"); done
  fi
}

queued_resources() {
  local verb=$1
  shift
  run gcloud compute tpus queued-resources "$verb" "$name" "${where[@]}" "$@"
}

create_nodes() {
  local flags=("--accelerator-type=$tpu_type" "--runtime-version=$runtime")
  if ((slices > 1)); then
    flags+=("--node-count=$slices" "--node-prefix=$name")
  else
    flags+=("--node-id=$name")
  fi
  case $capacity in
    spot) flags+=(--spot) ;;
    reserved) flags+=(--reserved) ;;
  esac
  say "requesting $slices x $tpu_type, $capacity"
  is_there=unknown
  queued_resources create "${flags[@]}" "${create_flags[@]}" || return
  is_there=true
  dry_state=ACTIVE
}

# Says no where it may still be there.
delete_nodes() {
  local tries
  ! $existing || fail '--existing: this script deletes nothing that it did' \
    'not make'
  say "deleting $name"
  was_there=false
  for ((tries = 1; tries <= 3; tries++)); do
    if queued_resources delete --force --quiet ||
      [[ $(resource_state) == ABSENT ]]; then
      is_there=false
      return
    fi
    pause "$poll"
  done
  return 1
}

# What gcloud says where asking again does not help.
_REFUSED='permission.?denied|forbidden|unauthenticated|reauth'
_REFUSED+='|has not been used|is disabled|invalid'

# Asks gcloud for a state; ABSENT where there is none of that name. Another
# fault, of the network say, is asked again.
state_of() {
  local errors answer tries
  errors=$(mktemp)
  for ((tries = 1; tries <= 20; tries++)); do
    if answer=$("$@" 2>"$errors"); then
      rm -f "$errors"
      echo "${answer:-UNKNOWN}"
      return
    fi
    if grep -qi 'not.\?found' "$errors"; then
      rm -f "$errors"
      echo ABSENT
      return
    fi
    say "gcloud does not tell the state: $(grep -m 1 ERROR "$errors" ||
      tail -n 1 "$errors")"
    if grep -qiE "$_REFUSED" "$errors"; then break; fi
    pause "$poll"
  done
  rm -f "$errors"
  return 1
}

# In a dry run there is nothing before it is made.
dry_state=ABSENT
resource_state() {
  state_of ask "$dry_state" gcloud compute tpus queued-resources describe \
    "$name" "${where[@]}" '--format=value(state.state)'
}

# The first state of a node that is not READY; READY if all are.
node_state() {
  local node state
  for node in "${nodes[@]}"; do
    state=$(state_of ask READY gcloud compute tpus tpu-vm describe "$node" \
      "${where[@]}" '--format=value(state)') || return
    [[ $state == READY ]] || break
  done
  echo "$state"
}

# ready, waiting, absent or lost, and the state that says so.
look() {
  local state
  if ! $existing; then
    state=$(resource_state) || return
    case $state in
      ACTIVE) ;;
      ABSENT) echo "absent $state" && return ;;
      FAILED | SUSPENDED) echo "lost $state" && return ;;
      *) echo "waiting $state" && return ;;
    esac
  fi
  state=$(node_state) || return
  case $state in
    READY) echo "ready $state" ;;
    CREATING | STARTING | RESTARTING | REIMAGING | REPAIRING)
      echo "waiting $state"
      ;;
    *) echo "lost $state" ;;
  esac
}

# Whether there is something that costs: true, false or unknown.
is_there=unknown
# Whether there was, and this script has not deleted it since.
was_there=false

# Sets `found` to what `look` says.
need_look() {
  found=$(look) || fail "gcloud tells no state of $name, see above"
  is_there=true
  case $found in
    absent*) is_there=false ;;
    *SUSPENDING | *DELETING) ;;
    ready* | waiting*) was_there=true ;;
  esac
}

# A preempted one is SUSPENDED: who deletes it means it.
heed_deletion() {
  if [[ $found == absent* ]] && $was_there; then
    fail "$name was deleted, not by this script; the same command requests" \
      "it anew and goes on"
  fi
}

# Returns when all nodes are READY; makes them anew where they are lost. gcloud
# does not take back what is SUSPENDING or DELETING: that is waited for.
need_nodes() {
  local found said='' refusals=0
  while true; do
    need_look
    if [[ $found != "$said" ]]; then say "$name is ${found#* }"; fi
    said=$found
    case $found in
      ready*) return ;;
      waiting*) pause "$poll" ;;
      lost* | absent*)
        heed_deletion
        ! $existing || fail "--name ($name) must be a TPU VM that is READY," \
          "and it is ${found#* }"
        if [[ $found == *FAILED ]]; then refusals=$((refusals + 1)); fi
        if [[ $found == lost* ]]; then
          delete_nodes || refusals=$((refusals + 1))
        else
          create_nodes || refusals=$((refusals + 1))
        fi
        ((refusals < max_failures)) || fail "$name was refused $refusals" \
          "times in a row; what gcloud says of it is above, or in:" \
          "$(quoted gcloud compute tpus queued-resources describe "$name" \
            "${where[@]}")"
        pause "$poll"
        ;;
    esac
  done
}

# The connection is given up when nothing comes back for a minute.
_SSH=('--ssh-flag=-o ServerAliveInterval=15'
  '--ssh-flag=-o ServerAliveCountMax=4')

# on_node NODE WORKER COMMAND: WORKER is a number or all.
on_node() {
  run gcloud compute tpus tpu-vm ssh "$1" "${where[@]}" --worker="$2" \
    --quiet "${_SSH[@]}" "${ssh_flags[@]}" --command="$3" </dev/null
}

copy_to_node() {
  run gcloud compute tpus tpu-vm scp "$2" "$1:$3" "${where[@]}" --worker=all \
    --quiet "${ssh_flags[@]}" </dev/null
}

# On all nodes at once, for processes find each other only within minutes; says
# no if one says no.
at_once() {
  local node pids=() pid status=0
  for node in "${nodes[@]}"; do
    if $dry_run; then
      "$1" "$node" "${@:2}"
    else
      "$1" "$node" "${@:2}" &
      pids+=($!)
    fi
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return "$status"
}

on_nodes() {
  at_once on_node "$@"
}
