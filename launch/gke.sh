#!/usr/bin/env bash
# Trains on a GKE cluster that has TPU node pools and the JobSet controller.
# The same command again follows what runs, or goes on where it stopped.
#
#   launch/gke.sh --name=NAME --type=TYPE --image=IMAGE \
#       --folder=gs://BUCKET/FOLDER [OPTIONS] -- train --config=FILE [FLAGS]
#   launch/gke.sh --name=NAME --status | --delete
#
#   --name=NAME      of the JobSet
#   --type=TYPE      of a slice, such as v5litepod-8, v6e-64, v5p-256
#   --slices=N       how many, in one run (default 1)
#   --image=IMAGE    built of launch/Dockerfile, in a registry of yours
#   --folder=gs://BUCKET/FOLDER   for checkpoints, metrics, the model
#   --capacity=KIND  on-demand (default), spot, or reserved:NAME
#   --topology=AxBxC of a slice, where its node pool has not the usual one
#   --chips-per-host=N            where its machines have not the usual number
#   --service-account=NAME        of Kubernetes (default: default)
#   --user=ID        that it runs as (default 1000, the image's; 0 is root)
#   --max-restarts=N after faults and preemptions, in all (default 50)
#   --context=, --namespace=      default: those that kubectl is set to
#   --poll=SECONDS   between looks at a state (default 30)
#   --print          print the JobSet and make nothing
#   --dry-run        print the commands and run none
set -euo pipefail
source "$(dirname "$0")/shared.sh"
source "$ROOT/launch/accelerators.sh"
source "$ROOT/launch/jobset.sh"

name='' given_type='' slices=1 image='' folder='' capacity=on-demand
given_topology='' given_chips='' account=default user=1000
max_restarts=50 poll=30
action=train
kubectl=(kubectl) job=()
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
      --image=*) image=$value ;;
      --folder=*) folder=$value ;;
      --capacity=*) capacity=$value ;;
      --topology=*) given_topology=$value ;;
      --chips-per-host=*) given_chips=$value ;;
      --service-account=*) account=$value ;;
      --user=*) user=$value ;;
      --max-restarts=*) max_restarts=$value ;;
      --context=* | --namespace=*) kubectl+=("$1") ;;
      --poll=*) poll=$value ;;
      --dry-run) dry_run=true ;;
      --status | --delete | --print) action=${1#--} ;;
      *) fail "there is no option $1; see $0 --help" ;;
    esac
    shift
  done
}

check() {
  need_name --name "$name"
  need_seconds --poll "$poll"
  if [[ $action == train || $action == print ]]; then
    [[ $given_type ]] || fail "--type=TYPE is required, such as v5litepod-8"
    accelerator "$given_type"
    need_topology --topology "$given_topology"
    need_hosts
    need_count --slices "$slices"
    need_count --max-restarts "$max_restarts"
    need_job "${job[@]}"
    need_bucket --folder "$folder"
    need_image --image "$image"
    need_match --capacity "$capacity" 'on-demand|spot|reserved:[-a-z0-9]+' \
      'on-demand, spot or reserved:NAME'
    need_match --service-account "$account" '[a-z0-9]([-a-z0-9.]*[a-z0-9])?' \
      'the name of a service account of Kubernetes'
    need_match --user "$user" '[0-9]{1,9}' 'a number'
  elif ((${#job[@]})); then
    fail "--$action takes nothing after --"
  fi
  if [[ $action != print ]]; then need_command kubectl; fi
}

need_hosts() {
  if [[ $given_chips ]]; then
    need_match --chips-per-host "$given_chips" '1|4|8' '1, 4 or 8'
    ((chips % given_chips == 0)) || fail "--chips-per-host ($given_chips)" \
      "must divide the $chips chips of --type ($tpu_type)"
    chips_per_host=$given_chips
    hosts=$((chips / chips_per_host))
  fi
}

# A list of YAML, in double quotes. Kubernetes reads $$ as $.
yaml_list() {
  local word list=''
  for word in "$@"; do
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    list+=", \"${word//\$/\$\$}\""
  done
  echo "[${list#, }]"
}

# Lines that end with a mark are there or not.
keep_if() {
  if [[ $1 == true ]]; then
    text=${text//" # @$2@"/}
  else
    text=$(grep -v "# @$2@" <<<"$text")
  fi
}

put_in() {
  text=${text//"@$1@"/"$2"}
}

# What is to be kubectl's. The words of the user come last.
render() {
  local text reservation=''
  text=$(<"$ROOT/launch/gke_jobset.yaml")
  if [[ $capacity == reserved:* ]]; then reservation=${capacity#*:}; fi
  keep_if "$( ((hosts > 1)) && echo true)" MANY_HOSTS
  keep_if "$([[ $capacity == spot ]] && echo true)" SPOT
  keep_if "$([[ $reservation ]] && echo true)" RESERVED
  text=$(sed '/^#/d' <<<"$text")
  put_in NAME "$name"
  put_in SLICES "$slices"
  put_in HOSTS "$hosts"
  put_in CHIPS_PER_HOST "$chips_per_host"
  put_in ACCELERATOR "$gke_label"
  put_in TOPOLOGY "$topology"
  put_in RESERVATION "$reservation"
  put_in MAX_RESTARTS "$max_restarts"
  put_in SERVICE_ACCOUNT "$account"
  put_in USER "$user"
  put_in IMAGE "$image"
  [[ ! ${text/@ARGS@/} =~ @[A-Z_]+@ ]] ||
    fail "${BASH_REMATCH[0]} of gke_jobset.yaml has no value"
  put_in ARGS "$(yaml_list /run/dapo-jax "$folder" "${job[@]}" --distributed)"
  printf '%s\n' "$text"
}

delete_jobset() {
  run "${kubectl[@]}" delete jobset "$name" --ignore-not-found --wait
}

train() {
  local deleting
  deleting=$(quoted "${kubectl[@]}" delete jobset "$name")
  say "context $(ask CONTEXT "${kubectl[@]}" config current-context)"
  say "$name: $slices x $tpu_type ($topology, $hosts hosts of $chips_per_host" \
    "chips each), $capacity; the run's folder is $folder"
  trap unfollowed INT TERM
  if is_needed; then
    if $dry_run; then
      printf "%s <<'END'\n%s\nEND\n" \
        "$(quoted "${kubectl[@]}" apply --filename=-)" "$(render)"
    else
      render | "${kubectl[@]}" apply --filename=-
    fi
  fi
  follow
}

parse "$@"
check
case $action in
  train) train ;;
  print) render ;;
  delete) delete_jobset ;;
  status)
    dry_state=''
    say "$name: $(jobset_state)"
    run "${kubectl[@]}" get pods \
      "--selector=jobset.sigs.k8s.io/jobset-name=$name"
    ;;
esac
