# shellcheck shell=bash disable=SC2154
# A JobSet on GKE: its state, its log, what its end means. Sourced by gke.sh and
# xpk.sh, which set `name`, `poll` and `kubectl`, the command with its flags.

# Its name, and the conditions that hold, with blanks between.
readonly _CONDITIONS='{.metadata.name} {.status.conditions[?(@.status=="True")]'

# Absent, Running, Completed or Failed.
jobset_state() {
  local conditions tries=1
  until conditions=$(ask "$dry_state" "${kubectl[@]}" get jobset "$name" \
    --ignore-not-found "--output=jsonpath=$_CONDITIONS.type}"); do
    say "kubectl does not tell the state of $name"
    ((tries++ < 5)) || fail "kubectl told no state $tries times, see above"
    pause "$poll"
  done
  case " $conditions " in
    '  ') echo Absent ;;
    *' Completed '*) echo Completed ;;
    *' Failed '*) echo Failed ;;
    *) echo Running ;;
  esac
}

readonly _POD='{.metadata.name} {.status.phase}{"\n"}'

# The name of the first process's pod, which is another one after a restart, and
# its phase, the newest last; nothing where it is not begun. An index into the
# list is an error of kubectl's where it is empty.
first_pod() {
  local selector=jobset.sigs.k8s.io/jobset-name=$name
  selector+=,jobset.sigs.k8s.io/job-index=0
  selector+=,batch.kubernetes.io/job-completion-index=0
  ask "$name-slice-0-0 Running" "${kubectl[@]}" get pods \
    "--selector=$selector" '--field-selector=status.phase!=Pending' \
    --sort-by=.metadata.creationTimestamp \
    "--output=jsonpath={range .items[*]}$_POD{end}"
}

# Says, now and every five minutes, that no pod runs, and what tells why.
tell_at_s=0
say_pending() {
  if ((SECONDS >= tell_at_s)); then
    say "no pod of $name runs yet; why: $(quoted "${kubectl[@]}" describe pods \
      "--selector=jobset.sigs.k8s.io/jobset-name=$name")"
    tell_at_s=$((SECONDS + 300))
  fi
}

# Shows the log of the first process, through all restarts, to the end.
follow() {
  local found pod phase shown='' state=Running
  while [[ $state == Running ]]; do
    # Where kubectl fails it says why, and the state is asked for below.
    found=$(first_pod | tail -n 1) || found='? ?'
    read -r pod phase <<<"$found" || true
    if [[ ! $pod ]]; then say_pending; fi
    if [[ ! $pod || $pod == '?' ]] ||
      [[ $pod == "$shown" && $phase != Running ]]; then
      pause "$poll"
    elif [[ $pod == "$shown" ]]; then
      say 'the connection broke; the run goes on'
      run "${kubectl[@]}" logs --follow --since=10s "$pod" ||
        pause "$poll"
    else
      say "the log of $pod"
      run "${kubectl[@]}" logs --follow "$pod" || pause "$poll"
      shown=$pod
    fi
    dry_state="$name Completed"
    state=$(jobset_state)
  done
  case $state in
    Completed) $dry_run || say "done; what it wrote is in $folder" ;;
    Failed)
      fail "the run failed; the log above says why, and these of the other" \
        "processes: $(quoted "${kubectl[@]}" logs --prefix --tail=3 \
          "--selector=jobset.sigs.k8s.io/jobset-name=$name")"
      ;;
    *) fail "$name was deleted; the same command goes on" ;;
  esac
}

# What is in the way of a new one, or makes it needless. Returns whether one is
# to be made.
is_needed() {
  local state
  dry_state=''
  state=$(jobset_state) || exit
  case $state in
    Running) say "$name runs already" && return 1 ;;
    Completed | Failed)
      say "$name is there and has ended ($state); it is made anew"
      delete_jobset
      ;;
  esac
}

unfollowed() {
  say "not followed any more; the run goes on"
  say "  follow again: $again"
  say "  delete it:    $deleting"
  exit 130
}
