# shellcheck shell=bash
# The TPU slices of Google Cloud: what a type is called on a TPU VM and on GKE,
# and how many chips and hosts it has. Sourced, not run.

# Sets, for a type such as v5p-256: `tpu_type` (its full name), `chips`,
# `runtime` (what a TPU VM boots), `gke_label`, `topology`, `hosts` and
# `chips_per_host` (the latter three on GKE).
# shellcheck disable=SC2034
accelerator() {
  local size generation
  tpu_type=${1/#v5e-/v5litepod-}
  generation=${tpu_type%-*}
  size=${tpu_type##*-}
  need_match --type "$1" '(v4|v5p|v5e|v5litepod|v6e)-[1-9][0-9]*' \
    'a generation and a size: v4-N, v5p-N (N TensorCores, two a chip),'` \
      `' v5litepod-N or v6e-N (N chips)'
  chips=$size
  case $generation in
    v4) runtime=tpu-ubuntu2204-base gke_label=tpu-v4-podslice ;;
    v5p) runtime=v2-alpha-tpuv5 gke_label=tpu-v5p-slice ;;
    v5litepod) runtime=v2-alpha-tpuv5-lite gke_label=tpu-v5-lite-podslice ;;
    v6e) runtime=v2-alpha-tpuv6e gke_label=tpu-v6e-slice ;;
  esac
  case $generation in
    v4 | v5p)
      ((size % 8 == 0)) || fail "--type ($1) must have a size that 8 divides:" \
        "hosts have four chips, of two TensorCores"
      [[ $generation == v5p ]] || ((size <= 8192)) ||
        fail "--type ($1) must be at most v4-8192"
      chips=$((size / 2))
      topology=$(_cube "$chips")
      chips_per_host=4
      ;;
    *)
      topology=$(_square "$chips")
      [[ $topology ]] || fail "--type ($1) must have 1, 4, 8, 16, 32, 64, 128" \
        "or 256 chips"
      # Eight chips are one host; more are hosts of four.
      chips_per_host=$((chips == 8 ? 8 : 4))
      ;;
  esac
  if ((chips < 4)); then chips_per_host=$chips; fi
  hosts=$((chips / chips_per_host))
}

# The usual topology of slices in two dimensions; nothing for other sizes.
_square() {
  case $1 in
    1) echo 1x1 ;;
    4) echo 2x2 ;;
    8) echo 2x4 ;;
    16) echo 4x4 ;;
    32) echo 4x8 ;;
    64) echo 8x8 ;;
    128) echo 8x16 ;;
    256) echo 16x16 ;;
  esac
}

# The same in three dimensions.
_cube() {
  case $1 in
    4) echo 2x2x1 ;;
    8) echo 2x2x2 ;;
    16) echo 2x2x4 ;;
    32) echo 2x4x4 ;;
    64) echo 4x4x4 ;;
    128) echo 4x4x8 ;;
    192) echo 4x4x12 ;;
    256) echo 4x8x8 ;;
    384) echo 4x8x12 ;;
    512) echo 8x8x8 ;;
    768) echo 8x8x12 ;;
    1024) echo 8x8x16 ;;
    1152) echo 8x12x12 ;;
    1536) echo 8x12x16 ;;
    1728) echo 12x12x12 ;;
    2048) echo 8x16x16 ;;
    2304) echo 12x12x16 ;;
    3072) echo 12x16x16 ;;
    4096) echo 16x16x16 ;;
    4608) echo 12x16x24 ;;
    6144) echo 16x16x24 ;;
  esac
}

# need_topology FLAG VALUE: sets `topology`, if a value is given, and refuses
# one that has not `chips` chips, or none where the table has none.
need_topology() {
  topology=${2:-$topology}
  [[ $topology ]] || fail "there is no usual topology of $chips chips; give" \
    "$1=AxB or AxBxC"
  need_match "$1" "$topology" '[0-9]+x[0-9]+(x[0-9]+)?' 'AxB or AxBxC'
  ((${topology//x/*} == chips)) ||
    fail "$1 ($topology) must have the $chips chips of --type ($tpu_type)"
}
