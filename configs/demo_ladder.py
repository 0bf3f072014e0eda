"""The ladders of DAPO and DCPO on the demo's sums, on a laptop's CPU.

  dapo-jax sft --config=configs/demo_ladder.py --workdir=runs/ladder/sft \
      --config.data.arithmetic.max_per_terms=none
  dapo-jax train --config=configs/demo_ladder.py:NAME \
      --workdir=runs/ladder/NAME --config.model.path=runs/ladder/sft/model

NAME is a row of DAPO's table (naive_grpo, overlong_filtering, clip_higher,
soft_overlong, token_loss, dapo) or a method of DCPO's (grpo, gspo, dcpo, dac,
sas, otm), with the changes of configs/dapo_qwen2p5_32b.py and
configs/dcpo_qwen2p5_math.py; `dapo` is the row. Each runs for minutes on two
CPU cores. Compare the names of one table: rewards are 1 and -1 in DAPO's, 1, 0
and, without an answer, -1 in DCPO's, which also has the population's standard
deviation.

The problems are 241 sums, drawn again and again, because smooth advantage
standardization acts from the second visit on: 60 steps of 32 prompts are eight
visits of each, without the filter. Held out are 271 sums of the same kind,
which the supervised warm-up has not seen either. The papers have no such task,
so there is no number to expect. What they claim shows in metrics.jsonl: with
sas and dcpo more responses have an advantage (advantage/used_frac), with dac
and dcpo fewer tokens are clipped (policy/clipped_nonzero_frac).
"""

import ml_collections

from configs import dapo_qwen2p5_32b, dcpo_qwen2p5_math, demo, variants

_METHODS = ('grpo', 'gspo', 'dcpo', 'dac', 'sas', 'otm')
NAMES = (*dapo_qwen2p5_32b.ROWS, *_METHODS)
_VARIANTS = {
  row: variants.up_to(row, dapo_qwen2p5_32b.ROWS)
  for row in dapo_qwen2p5_32b.ROWS
} | {method: dcpo_qwen2p5_math.METHODS[method] for method in _METHODS}


def get_config(name: str = 'dcpo') -> ml_collections.ConfigDict:
  """Returns the configuration of a row or a method."""
  c = demo.get_config()
  # 512 sums, about half of them held out: 241 to train on.
  c.data.arithmetic.max_per_terms = 512
  c.data.arithmetic.held_out_frac = 0.5
  # Once nearly all answers are right there may be no full step of mixed groups.
  c.filter.on_limit = 'train_partial'
  c.update_from_flattened_dict(variants.one(name, _VARIANTS))
  return c
