#!/usr/bin/env bash
# Trains on TPU VMs: rents them, installs this commit, runs, restarts, to the
# end. The same command again follows what runs, or goes on where it stopped.
#
#   launch/tpu_vm.sh --name=NAME --type=TYPE --folder=gs://BUCKET/FOLDER \
#       [OPTIONS] -- train --config=FILE [FLAGS]
#   launch/tpu_vm.sh --name=NAME --status | --follow | --stop | --delete
#
#   --name=NAME      of the queued resource, and of its TPU VM
#   --type=TYPE      such as v5litepod-8, v6e-64, v5p-256
#   --slices=N       how many of them, in one run (default 1)
#   --folder=gs://BUCKET/FOLDER   for checkpoints, metrics, the model
#   --capacity=KIND  on-demand (default), spot or reserved
#   --project=, --zone=           default: those that gcloud is set to
#   --runtime=VERSION             of the TPU VM (default: by the type)
#   --extras=LIST    of this package to install (default tpu,gcs)
#   --ref=COMMIT     what is installed (default HEAD)
#   --existing       NAME is a TPU VM that runs: create and delete nothing
#   --delete-when-done            delete NAME when the run is done
#   --create-flag=FLAG, --ssh-flag=FLAG  passed on to gcloud; may be repeated
#   --max-failures=N in a row without a new step, then it gives up (default 3)
#   --poll=SECONDS   between looks at a state (default 30)
#   --dry-run        print the commands and run none
#
# With --slices of 2 or more, --status and the others need it too.
set -euo pipefail
source "$(dirname "$0")/shared.sh"
source "$ROOT/launch/accelerators.sh"
source "$ROOT/launch/tpu_vm_nodes.sh"
source "$ROOT/launch/tpu_vm_job.sh"

name='' given_type='' slices=1 folder='' capacity=on-demand project='' zone=''
given_runtime='' extras=tpu,gcs ref=HEAD existing=false delete_when_done=false
poll=30 action=train
create_flags=() ssh_flags=() job=()
again=$(quoted "$0" "$@")

parse() {
  local value
  while (($#)); do
    value=${1#*=}
    case $1 in
      --help | -h) usage && exit 0 ;;
      --) job=("${@:2}") && break ;;
      --name=*) name=$value ;;
      --type=*) given_type=$value ;;
      --slices=*) slices=$value ;;
      --folder=*) folder=$value ;;
      --capacity=*) capacity=$value ;;
      --project=*) project=$value ;;
      --zone=*) zone=$value ;;
      --runtime=*) given_runtime=$value ;;
      --extras=*) extras=$value ;;
      --ref=*) ref=$value ;;
      --create-flag=*) create_flags+=("$value") ;;
      --ssh-flag=*) ssh_flags+=("$value") ;;
      --max-failures=*) max_failures=$value ;;
      --poll=*) poll=$value ;;
      --existing) existing=true ;;
      --delete-when-done) delete_when_done=true ;;
      --dry-run) dry_run=true ;;
      --status | --follow | --stop | --delete) action=${1#--} ;;
      *) fail "there is no option $1; see $0 --help" ;;
    esac
    shift
  done
}

# Everything is refused that can be, before anything is rented.
check() {
  need_name --name "$name"
  need_count --slices "$slices"
  need_count --max-failures "$max_failures"
  need_seconds --poll "$poll"
  if [[ $action == train ]]; then
    need_job "${job[@]}"
    need_bucket --folder "$folder"
    need_match --capacity "$capacity" 'on-demand|spot|reserved' \
      'on-demand, spot or reserved'
    need_match --extras "$extras" '[a-z0-9,]+' 'names with commas between'
    git -C "$ROOT" rev-parse --quiet --verify "$ref^{commit}" >/dev/null ||
      fail "--ref ($ref) must be a commit of the repository $ROOT"
    need_config
    if $existing; then
      [[ $slices == 1 && ! $given_type ]] ||
        fail "--existing is one TPU VM as it is; leave out --slices and --type"
    else
      [[ $given_type ]] || fail "--type=TYPE is required, such as v5litepod-8"
      accelerator "$given_type"
      runtime=${given_runtime:-$runtime}
    fi
  elif ((${#job[@]})); then
    fail "--$action takes nothing after --"
  fi
  need_command gcloud
}

# What is run is the commit: a configuration that is not in it would be missed
# only when the machines are rented.
need_config() {
  local file
  file=$(config_of "${job[@]}")
  # What the bucket's input/ brings is there too.
  [[ $file != input/* ]] || return 0
  git -C "$ROOT" cat-file -e "$ref:$file" 2>/dev/null ||
    fail "--config ($file) must be a file of the commit that is installed" \
      "(--ref, $ref), as the repository calls it, or one of input/"
}

# What gcloud is set to, where nothing is given.
locate() {
  project=${project:-$(ask PROJECT gcloud config get-value project)}
  [[ $project ]] || fail "--project=PROJECT is required: gcloud has none set"
  zone=${zone:-$(ask ZONE gcloud config get-value compute/zone)}
  [[ $zone ]] || fail "--zone=ZONE is required: gcloud has none set"
  where=("--project=$project" "--zone=$zone")
  say "project $project, zone $zone"
}

describe() {
  if $existing; then
    say "$name: the TPU VM as it is; the run's folder is $folder"
    return
  fi
  say "$name: $slices x $tpu_type ($chips chips each), $capacity," \
    "runtime $runtime; the run's folder is $folder"
  if [[ $(git -C "$ROOT" status --porcelain --untracked-files=no) ]]; then
    say "warning: what is not committed is not installed there ($ref is)"
  fi
}

interrupted() {
  trap - EXIT
  if $existing || [[ $is_there == true ]]; then
    say "not followed any more; what was started goes on, and costs"
    hints
  else
    left_behind
  fi
  exit 130
}

# At every end but those that say it themselves.
left_behind() {
  case $is_there in
    true) say "$name is not deleted, and costs:" && hints ;;
    unknown) say "$name may be there, and cost:" && hints ;;
  esac
}

hints() {
  local same=(launch/tpu_vm.sh "--name=$name" "${where[@]}")
  if ((slices > 1)); then same+=("--slices=$slices"); fi
  if $existing; then same+=(--existing); fi
  say "  follow again: $again"
  say "  stop the run: $(quoted "${same[@]}" --stop)"
  $existing || say "  delete it:    $(quoted "${same[@]}" --delete)"
}

train() {
  trap interrupted INT TERM
  describe
  if ! $existing && ! $dry_run; then trap left_behind EXIT; fi
  until_done
  if $delete_when_done && ! $existing; then delete; fi
}

delete() {
  trap 'trap - EXIT; fail "$name may not be deleted, and cost"' INT TERM
  delete_nodes || fail "$name may still be there, and cost; what gcloud says" \
    "of it is above"
}

parse "$@"
check
locate
name_nodes
case $action in
  train) train ;;
  status) on_nodes all "$(worker status)" ;;
  follow) judge && follow_from $((logged > 20 ? logged - 19 : 1)) ;;
  stop) on_nodes all "$(worker stop)" ;;
  delete) delete ;;
esac
