# shellcheck shell=bash disable=SC2034
# What the scripts of this folder share: lines with the time, refusals, options,
# and commands that are printed instead of run. Sourced, not run.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "error: these scripts need bash 4.4 or newer, and this is" \
    "$BASH_VERSION; on macOS: brew install bash" >&2
  exit 2
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Exit statuses of job.sh beside 0, which is done, and others, which are faults.
# 2 is dapo-jax's own; 75 is what sendmail and others call a temporary failure.
readonly USERS_ERROR=2 STOPPED=75
dry_run=false
# Commands and events go to where the script's output goes, also from inside
# of a function whose output is taken.
exec 3>&1

say() {
  printf '%(%H:%M:%S)T %s\n' -1 "$*" >&3
}

fail() {
  echo "$(basename "$0"): error: $*" >&2
  exit "$USERS_ERROR"
}

# Prints the words as a line that a shell reads as the same words.
quoted() {
  local word line=''
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:@%+,-][A-Za-z0-9_./:=@%+,-]*$ ]]; then
      word="'${word//\'/\'\\\'\'}'"
    fi
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

# Runs a command, or prints it.
run() {
  if $dry_run; then quoted "$@" >&3; else "$@"; fi
}

# The same of a question; the first argument is what a dry run takes as answer.
ask() {
  local answer=$1
  shift
  if $dry_run; then
    quoted "$@" >&3
    printf '%s\n' "$answer"
  else
    "$@"
  fi
}

# Sleeps, except in a dry run.
pause() {
  if ! $dry_run; then sleep "$1"; fi
}

# Prints the comment at the top of the script that is run.
usage() {
  sed -n '2,/^[^#]/{s/^# \{0,1\}//p;}' "$0"
}

need_command() {
  $dry_run || [[ $(type -t "$1") ]] ||
    fail "$1 is not installed, and this script calls it"
}

# need_match FLAG VALUE REGEX RULE
need_match() {
  [[ $2 =~ ^($3)$ ]] || fail "$1 ($2) must be $4"
}

need_name() {
  [[ $2 ]] || fail "$1=NAME is required: what is made is called so"
  need_match "$1" "$2" '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' \
    'a lower-case letter, then at most 39 letters, digits or -, no - at the end'
}

need_count() {
  need_match "$1" "$2" '[1-9][0-9]{0,4}' 'a number from 1'
}

need_seconds() {
  need_match "$1" "$2" '[0-9]+([.][0-9]+)?' 'a number of seconds'
}

need_bucket() {
  [[ $2 ]] ||
    fail "$1=gs://BUCKET/FOLDER is required: the run's checkpoints and logs" \
      "go there, for its machines do not stay"
  need_match "$1" "$2" 'gs://[a-z0-9][-a-z0-9._]+/[^ ]*[^ /]' \
    'gs://BUCKET/FOLDER, BUCKET in lower case, no blank, no / at the end'
}

need_image() {
  [[ $2 ]] || fail "$1=IMAGE is required: what was built of launch/Dockerfile"
  need_match "$1" "$2" '[A-Za-z0-9][-A-Za-z0-9._:/@]*' 'the name of an image'
}

# Prints the file that --config names after --, without its row.
config_of() {
  local word found=''
  while (($#)); do
    word=${1#-}
    case ${word#-} in
      config=*) found=${1#*=} ;;
      config) found=${2:-} ;;
    esac
    shift
  done
  printf '%s\n' "${found%%:*}"
}

# Whether the script has a --folder, which says where checkpoints are.
sets_folder=true

# The words after --: a command of dapo-jax, without the flags that are ours.
need_job() {
  local word
  [[ ${1:-} ]] ||
    fail "nothing to run; end with what dapo-jax is to do, for example:" \
      "-- train --config=configs/demo.py"
  case $1 in
    train | sft | eval) ;;
    *) fail "after -- (now $1) must be train, sft or eval, and its flags" ;;
  esac
  for word in "${@:2}"; do
    [[ $word != *$'\n'* ]] || fail "a flag after -- must be one line"
    [[ $word == -* ]] || continue
    # One - or two, as dapo-jax takes them.
    word=${word#-}
    case ${word#-} in
      workdir* | distributed* | coordinator* | process | process=* | \
        processes*)
        fail "--${word#-} must not be given after --; this script sets it"
        ;;
      config.checkpoint.folder*)
        ! $sets_folder || fail "--${word#-} must not be given after --; it is" \
          "--folder's checkpoints/"
        ;;
    esac
  done
  [[ $(config_of "$@") ]] ||
    fail "after -- there must be a --config=FILE, such as configs/demo.py"
}

# Waits for a process of this shell and returns its status. A signal ends
# `wait`, not the process; what handles it counts `signals`.
signals=0
wait_for() {
  local before status='' found
  while true; do
    before=$signals
    wait "$1" && found=0 || found=$?
    # The second time the shell may have forgotten it.
    if [[ ! $status || $found != 127 ]]; then status=$found; fi
    if ((signals == before)); then return "$status"; fi
  done
}

# The last step that a work directory has a line of; 0 where there is none.
last_step() {
  local found
  found=$(tail -n 1 "$1/metrics.jsonl" 2>/dev/null |
    sed -n 's/.*"step": *\([0-9]\{1,\}\).*/\1/p') || true
  echo "${found:-0}"
}

# may_go_on STEP: says no when the job has failed `max_failures` times in a row
# without getting beyond the best step.
max_failures=3
failures=0
best_step=-1
may_go_on() {
  if (($1 > best_step)); then
    best_step=$1
    failures=0
  fi
  failures=$((failures + 1))
  ((failures < max_failures))
}
