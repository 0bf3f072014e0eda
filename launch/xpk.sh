#!/usr/bin/env bash
# Trains on a GKE cluster that xpk has made. The same command again follows what
# runs, or goes on where it stopped.
#
#   launch/xpk.sh --name=NAME --cluster=CLUSTER --type=TYPE --image=IMAGE \
#       --folder=gs://BUCKET/FOLDER [OPTIONS] -- train --config=FILE [FLAGS]
#   launch/xpk.sh --name=NAME --cluster=CLUSTER --delete
#
#   --name=NAME      of the workload
#   --cluster=NAME   of `xpk cluster create`
#   --type=TYPE      of a slice, such as v5litepod-16, v6e-64, v5p-256
#   --slices=N       how many, in one run (default 1)
#   --image=IMAGE    built of launch/Dockerfile, in a registry of yours
#   --folder=gs://BUCKET/FOLDER   for checkpoints, metrics, the model
#   --capacity=KIND  as the cluster has it (default), on-demand, spot, or
#                    reserved:NAME
#   --project=, --zone=           default: those that gcloud is set to
#   --max-restarts=N after faults and preemptions, in all (default 50)
#   --poll=SECONDS   between looks at a state (default 30)
#   --dry-run        print the commands and run none
set -euo pipefail
source "$(dirname "$0")/shared.sh"
source "$ROOT/launch/accelerators.sh"
source "$ROOT/launch/jobset.sh"

name='' cluster='' given_type='' slices=1 image='' folder='' capacity=''
max_restarts=50 poll=30 action=train
where=() job=() kubectl=(kubectl)
again=$(quoted "$0" "$@")

parse() {
  local value
  while (($#)); do
    value=${1#*=}
    case $1 in
      --help | -h) usage && exit 0 ;;
      --) job=("${@:2}") && break ;;
      --name=*) name=$value ;;
      --cluster=*) cluster=$value ;;
      --type=*) given_type=$value ;;
      --slices=*) slices=$value ;;
      --image=*) image=$value ;;
      --folder=*) folder=$value ;;
      --capacity=*) capacity=$value ;;
      --project=* | --zone=*) where+=("$1") ;;
      --max-restarts=*) max_restarts=$value ;;
      --poll=*) poll=$value ;;
      --dry-run) dry_run=true ;;
      --delete) action=delete ;;
      *) fail "there is no option $1; see $0 --help" ;;
    esac
    shift
  done
}

check() {
  need_name --name "$name"
  [[ $cluster ]] || fail "--cluster=NAME is required: what xpk has made"
  need_match --cluster "$cluster" '[a-z][-a-z0-9]*' 'the name of a cluster'
  need_seconds --poll "$poll"
  if [[ $action == train ]]; then
    [[ $given_type ]] || fail "--type=TYPE is required, such as v5litepod-16"
    accelerator "$given_type"
    need_count --slices "$slices"
    need_count --max-restarts "$max_restarts"
    need_job "${job[@]}"
    need_bucket --folder "$folder"
    need_image --image "$image"
    need_match --capacity "$capacity" '|on-demand|spot|reserved:[-a-z0-9]+' \
      'on-demand, spot or reserved:NAME'
  elif ((${#job[@]})); then
    fail '--delete takes nothing after --'
  fi
  need_command xpk
  need_command kubectl
}

# xpk [VERB of workload] [FLAGS]
xpk_workload() {
  run xpk workload "$1" "--cluster=$cluster" "${where[@]}" "${@:2}"
}

# xpk restarts after statuses from 127 on, and what it is told.
create() {
  local flags=()
  case $capacity in
    on-demand | spot) flags=("--$capacity") ;;
    reserved:*) flags=("--reservation=${capacity#*:}") ;;
  esac
  xpk_workload create "--workload=$name" "--tpu-type=$tpu_type" \
    "--num-slices=$slices" "--docker-image=$image" \
    "--max-restarts=$max_restarts" "--restart-on-exit-codes=1,$STOPPED" \
    --termination-grace-period-seconds=90 "${flags[@]}" \
    "--command=bash launch/job.sh /tmp/dapo-jax $(quoted "$folder" \
      "${job[@]}" --distributed)"
}

delete_jobset() {
  xpk_workload delete "--workload=$name" --force
}

train() {
  local deleting
  deleting=$(quoted launch/xpk.sh "--name=$name" "--cluster=$cluster" \
    "${where[@]}" --delete)
  say "$name: $slices x $tpu_type in $cluster; the run's folder is $folder"
  trap unfollowed INT TERM
  # Sets kubectl to the cluster.
  xpk_workload list "--filter-by-job=$name"
  if is_needed; then create; fi
  follow
}

parse "$@"
check
case $action in
  train) train ;;
  delete) delete_jobset ;;
esac
