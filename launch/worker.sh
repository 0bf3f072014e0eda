#!/usr/bin/env bash
# What a worker, a machine of a TPU slice, does; tpu_vm.sh calls it there.
#
#   launch/worker.sh install RUN EXTRAS     this source in RUN/venv
#   launch/worker.sh start RUN START first|other FOLDER COMMAND [FLAGS]
#   launch/worker.sh status RUN             ROLE STATE STATUS STEP LINES
#   launch/worker.sh follow RUN LINE        the log from a line on, to the end
#   launch/worker.sh stop RUN               SIGTERM, and waits for the end
#
# RUN is a folder of this machine. The job does not end with the connection
# that started it, and is not started twice for the same START, a word. STATE is
# absent, running, ended or asked (to stop), LINES the length of the log.
set -euo pipefail
source "$(dirname "$0")/shared.sh"

# A release of Python that this package takes: that of the machine, or one
# that uv fetches, for the images of TPU VMs have an older one.
make_venv() {
  local python
  for python in python3.12 python3.11; do
    if command -v "$python" >/dev/null && "$python" -m venv --clear "$1"; then
      return
    fi
  done
  python3 -m pip install --quiet --user uv
  python3 -m uv venv --quiet --clear --seed --python 3.12 "$1"
}

install() {
  local extras=$1 wanted tag
  wanted="$(cat "$run/commit") $extras"
  if [[ $(cat "$run/installed" 2>/dev/null) == "$wanted" ]]; then
    say 'installed already'
    return
  fi
  rm -f "$run/installed"
  make_venv "$run/venv"
  tag=$("$run/venv/bin/python" -c \
    'import sys; print("py%d%d" % sys.version_info[:2])')
  cd "$ROOT"
  "$run/venv/bin/pip" install --quiet --disable-pip-version-check \
    --constraint "constraints-$tag.txt" ".[$extras]"
  echo "$wanted" >"$run/installed"
  say 'installed'
}

# The lock ends with the job, however that ends, a restart of the machine
# included; what the job starts does not inherit it.
is_running() {
  ! flock --nonblock "$run/lock" true
}

# Ids of the processes that hold the TPU: by its lock, its devices, or, of
# another user, by what the system knows of locks.
holders() {
  find /proc/[0-9]*/fd \( -lname "$1" -o -lname '/dev/accel[0-9]*' -o \
    -lname '/dev/vfio/[0-9]*' \) 2>/dev/null | cut -d/ -f3 | sort -u
  awk -v inode="$(stat --format=%i "$1")" \
    '$6 ~ ":" inode "$" && $5 > 0 { print $5 }' /proc/locks 2>/dev/null
}

# libtpu starts for one process at a time, and keeps others off by a file. One
# that a dead process has left, of another user say, is in the way.
need_free_tpu() {
  local lock=${LIBTPU_LOCKFILE:-/tmp/libtpu_lockfile} found
  [[ -e $lock ]] || return 0
  found=$(holders "$lock" | head -n 1) || true
  [[ ! $found ]] || fail "process $found ($(tr '\0' ' ' \
    <"/proc/$found/cmdline" 2>/dev/null | cut -c 1-80)) of this machine uses" \
    "the TPU (it holds $lock); end it, then give the same command"
  say "removing $lock: the process that left it is dead"
  rm -f "$lock" 2>/dev/null || sudo -n rm -f "$lock"
}

start() {
  local first=false
  if is_running || [[ $(cat "$run/start" 2>/dev/null) == "$1" ]]; then
    say 'started already'
    return
  fi
  need_free_tpu
  echo "$1" >"$run/start"
  if [[ $2 == first ]]; then first=true; fi
  shift 2
  rm -f "$run/exit_status" "$run/asked" "$run/pid"
  echo "$first" >"$run/first"
  cd "$ROOT" # where a configuration's path begins
  PATH=$run/venv/bin:$PATH DAPO_JAX_RUN=$run DAPO_JAX_FIRST=$first \
    setsid nohup flock --nonblock --close "$run/lock" \
    bash launch/job.sh "$run/workdir" "$@" --distributed \
    >"$run/log.txt" 2>&1 </dev/null 3>&- &
  # Not before it holds the lock; job.sh writes its number then.
  while [[ ! -s $run/pid && ! -s $run/exit_status ]] && kill -0 $!; do
    sleep 0.05
  done
  say 'started'
}

status() {
  local role=other state=ended code=- step lines
  if [[ $(cat "$run/first" 2>/dev/null) == true ]]; then role=first; fi
  if [[ ! -e $run/first ]]; then
    state=absent
  elif is_running; then
    state=running
  else
    # Without a status it was killed, or the machine was.
    code=$(cat "$run/exit_status" 2>/dev/null || echo 137)
    if [[ -e $run/asked ]]; then state=asked; fi
  fi
  step=$(last_step "$run/workdir")
  lines=$(cat "$run/log.txt" 2>/dev/null | wc -l) || true
  echo "$role $state $code $step $lines"
}

# `tail` looks at the job once a second.
follow() {
  local pid
  pid=$(cat "$run/pid" 2>/dev/null || true)
  if [[ $pid ]] && is_running; then
    tail -n "+$1" --pid="$pid" --sleep-interval=0.2 -f "$run/log.txt"
  else
    tail -n "+$1" "$run/log.txt"
  fi
}

stop() {
  if is_running; then
    touch "$run/asked"
    kill -TERM "$(cat "$run/pid")" || true
  fi
  while is_running; do sleep 0.2; done
  status
}

if (($# < 2)); then
  usage
  exit "$USERS_ERROR"
fi
action=$1 run=$2
shift 2
mkdir -p "$run"
case $action in
  install | start | status | follow | stop) "$action" "$@" ;;
  *) fail "there is no $action" ;;
esac
