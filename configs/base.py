"""Every configuration key, with its unit, its source and its default.

Those of the update, from advantages to the optimizer, are in `base_update`. A
config file starts from `get_config()` here and assigns what differs; a key
that is not listed here does not exist. The defaults are the DAPO paper's
(arXiv 2503.14476, section 4.1) where the paper gives one. `None` means off.
"""

import ml_collections
from ml_collections import config_dict

from configs import base_update


def get_config() -> ml_collections.ConfigDict:
  """Returns the full configuration with its defaults."""
  return ml_collections.ConfigDict(
    dict(
      # Root of all randomness: weights, prompt order, samples.
      seed=0,
      model=_model(),
      tokenizer=_tokenizer(),
      data=_data(),
      eval=_eval(),
      rollout=_rollout(),
      sampler=_sampler(),
      filter=_filter(),
      reward=_reward(),
      overlong=_overlong(),
      advantage=base_update.advantage(),
      critic=base_update.critic(),
      objective=base_update.objective(),
      optim=base_update.optim(),
      learner=base_update.learner(),
      mesh=_mesh(),
      checkpoint=_checkpoint(),
      train=_train(),
      profile=_profile(),
      plan=_plan(),
      sft=base_update.sft(),
    )
  )


def _model():
  return dict(
    # Folder to start from, of Hugging Face or made by import-hf; '' = random
    # weights of the shape below. With a folder, its config.json decides the
    # shape.
    path='',
    # Whether `path` may name what is not on this machine, a model of the
    # Hugging Face hub (OWNER/NAME) or a folder in a bucket (gs://...). It is
    # copied into the work directory once.
    allow_download=False,
    # Shape for random weights (the vocabulary comes from the tokenizer).
    layers=4,
    embed_dim=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffw_dim=512,
    tied_head=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    # Standard deviation of random weights; Qwen2's initializer_range.
    init_std=0.02,
    # Type of activations and matrix products: 'float32' or 'bfloat16'.
    # Parameters and optimizer moments are float32 always.
    compute_dtype='float32',
    # What the backward pass recomputes of each layer: 'none', nothing; 'dots',
    # all but matrix products and attention; 'attention', all but attention;
    # 'full', all from the layer's input, which is kept; 'offload', the same
    # from one that the host's memory keeps (GPUs, TPUs).
    remat='none',
    # Attention of whole rows: 'dense', with the scores of all pairs of tokens
    # in memory; 'chunked', with those of a few queries; 'splash', a kernel for
    # TPUs, with none; 'auto', splash on TPUs where it takes the model, else
    # dense for rows up to 2,048 tokens and chunked for longer ones.
    attention='auto',
    # Tokens whose logits exist at one time on a device, [tokens].
    logits_chunk_tokens=2048,
  )


def _tokenizer():
  return dict(
    # A folder with tokenizer.json or tokenizer.model, or such a file;
    # '' = the model's folder, or, for random weights, a sentencepiece
    # model trained on the training problems.
    path='',
    # Most pieces of a tokenizer trained on the spot, bytes included.
    vocab_size=320,
  )


def _data():
  return dict(
    # 'arithmetic' = generated sums; else a JSONL file with the fields
    # `problem` (or `messages`), `answer` and, for sft, `solution`; a parquet
    # file; a folder that `data build` wrote; or a generated task,
    # 'task:FAMILY' or 'task:FAMILY(NAME=VALUE, ...)': see docs/data.md.
    source='arithmetic',
    # Several of these in place of `source`, which must be '' then: pairs of
    # one and its weight. Prompts are drawn in proportion to the weights. The
    # flag's value is a tuple: "(('a.jsonl', 3), ('task:gcd', 1))".
    mixture=(),
    # How a prompt becomes text: 'plain' (the words as they are), 'dapo' (the
    # paper's instruction and reminder around them), 'boxed' (an instruction
    # before them that asks for the answer in a box), 'chat' (the form that
    # the model was trained on, the chat template of its tokenizer), or
    # 'chat_dapo' and 'chat_boxed', chats that ask for the same.
    template='plain',
    # Solved problems that stand before each prompt as examples: the first of
    # the training problems, which are then not trained on.
    shots=0,
    # Longest prompt, [tokens]; none is ever cut.
    max_prompt_tokens=64,
    # Longer training prompts: 'error', or 'drop' (their number is said). One
    # to evaluate on is always an error, for the score would be of fewer.
    overlong='error',
    # Training problems whose own answer the grader refuses: 'drop', or 'keep';
    # they are listed in WORKDIR/refused_golds.jsonl.
    unwinnable='drop',
    # Shuffle anew each epoch, from the seed.
    shuffle=True,
    # What is left of an epoch when it holds no whole round any more: 'keep',
    # the round reaches into the next epoch; or 'drop', it is not drawn.
    tail='keep',
    arithmetic=dict(
      # Fewest and most terms of a sum, and digits of each term.
      min_terms=2,
      terms=2,
      digits=2,
      # Most sums with each number of terms, chosen by hash; None = all.
      max_per_terms=config_dict.placeholder(int),
      # 'What is 47 + 38?' in place of '47+38=?'.
      in_words=False,
      # Share of the problems kept for evaluation, by hash of the text.
      held_out_frac=0.1,
      # Share of the solutions (for sft) that show their working; the others
      # state the answer at once.
      worked_frac=1.0,
    ),
    task=dict(
      # Problems made of a family, before repeated ones are dropped, and their
      # seed.
      problems=2500,
      seed=0,
      # Share of the problems kept for evaluation, by hash of the text.
      held_out_frac=0.1,
    ),
  )


def _eval():
  return dict(
    # '' = the held-out problems of what is generated (sums, tasks); else what
    # data.source may name, of what is generated those held out.
    source='',
    # Problems, [prompts], and samples of each.
    prompts=200,
    samples_per_prompt=8,
    # 0 = greedy (then one sample is enough).
    temperature=1.0,
    # Tokens that may be drawn, after the temperature: the so many likeliest
    # (0 or -1 = all); of those the fewest that have this share of the
    # probability (1 = all; DAPO 4.1: 0.7); and those that have at
    # least this multiple of the likeliest's probability (0 = all).
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    # Rollout steps between evaluations, also before the first and at the end.
    every_steps=10,
  )


def _rollout():
  return dict(
    # Prompts trained in a rollout step (DAPO 4.1: 512).
    prompts_per_step=512,
    # Responses to each prompt, G (DAPO 4.1: 16).
    responses_per_prompt=16,
    # Prompts drawn in a round as a multiple of prompts_per_step (the
    # published script: 3).
    oversample=1.0,
    # Longest response, [tokens], its EOS included (DAPO 4.1: 20480).
    max_response_tokens=20_480,
    # Sampling temperature; log-probs everywhere are taken at it. There is no
    # top-k, top-p or min-p here: the ratio and the sampler's correction are of
    # the whole softmax, which would not be what was sampled from.
    temperature=1.0,
    # A response ends with the token that completes one of these strings, in
    # evaluation too; its text ends before the string. () = only an end token
    # or the length ends it. Special tokens have no text. The flag's value is
    # a tuple: "('\n\n',)".
    stop_strings=(),
  )


def _sampler():
  return dict(
    # Sequences decoded at one time.
    slots=256,
    # Most decode steps between two looks of the host, [tokens].
    chunk_tokens=32,
    # Tensor-parallel shards of the engine; slots are split over the rest.
    tensor=1,
    # Devices of an engine, those of one or more whole processes; None = of one.
    # Each engine has all of the weights.
    engine_chips=config_dict.placeholder(int),
    # Prompts longer than this are prefilled in parts of this, a power of two
    # from 16, [tokens].
    prefill_tokens=1024,
    # Keys and values of the slots: 'dense', a whole row a slot; 'dense_int8',
    # the same in 8 bits (docs/performance.md has what that changes); 'paged',
    # pages that rows take as they grow and that a group's prompt is shared
    # in; 'auto', paged on TPUs where the kernel takes the model, else dense.
    cache='auto',
    # Of a page, a power of two from 8, [tokens].
    page_tokens=64,
    # Most memory of all slots on a device, [GiB]. Of dense ones, more is an
    # error that says how many fit; it is the size of the pool of pages: when
    # it is empty the youngest row waits and starts again. None = whatever the
    # slots could fill.
    cache_gib=config_dict.placeholder(float),
    # Mean gap of the sampler's and the trainer's log-probs above which a run
    # warns, once, [nats]; far above what rounding makes of the same weights.
    max_gap_nats=0.05,
  )


def _filter():
  return dict(
    # Dynamic sampling (DAPO eq. 8, the constraint): keep a group iff
    # 0 < correct < G.
    enabled=True,
    # Generation rounds before `on_limit` (the published script: 10).
    max_rounds=10,
    # 'error', 'train_partial' (train on the whole groups there are; none:
    # skip the update) or 'accept_uniform' (fill up with uniform groups,
    # whose advantage is 0).
    on_limit='error',
  )


def _reward():
  return dict(
    # What finds the answer and compares it with the gold one:
    # 'equivalence' (the last box or `Answer:` line, by meaning),
    # 'equivalence_box' (the last box alone), 'dapo' (the `Answer:` line, as
    # text: the rule of the published runs), 'dapo_strict_box' (its strict
    # form), or a function of yours, MODULE:FUNCTION or FILE.py:FUNCTION,
    # whose score is the reward: docs/rewards.md.
    grader='equivalence',
    # Comparisons that need algebra are made in so many processes, each within
    # so much time, [s], and memory, [GiB].
    verify_processes=2,
    verify_s=5.0,
    verify_memory_gib=1.0,
    # Correctness reward of a right and of a wrong answer (DAPO eq. 7).
    right=1.0,
    wrong=-1.0,
    # Of one without an answer; None = as a wrong one (DCPO eq. 15: 1, 0, -1).
    # What it is below that of a wrong one is the reward's format component.
    no_answer=config_dict.placeholder(float),
    # Most time that a round of sampling or an evaluation waits for verdicts
    # after its last response, [s]; then the run is saved and ends.
    wait_s=600.0,
  )


def _overlong():
  return dict(
    # Soft overlong punishment (DAPO eq. 13).
    enabled=True,
    # Length of the interval before max_response_tokens in which the
    # punishment grows from 0 to -1, [tokens] (DAPO 4.1: 4096).
    cache_tokens=4096,
    # Factor of the punishment (the published script: 1.0).
    factor=1.0,
    # A response that is cut off, with neither an EOS nor a stop string:
    # 'as_graded', 'wrong' whatever it says (naive GRPO, DAPO 3.4), or
    # 'masked' out of the loss (overlong filtering).
    truncated='as_graded',
  )


def _mesh():
  return dict(
    # Axis sizes of the update's mesh; their product is the number of
    # devices, -1 = what is left.
    data=1,
    fsdp=-1,
    tensor=1,
  )


def _checkpoint():
  return dict(
    # Save after every so many rollout steps, and at the end.
    every_steps=10,
    # Newest checkpoints kept, and beside them those of every so many rollout
    # steps; None = no others.
    keep=2,
    keep_every_steps=config_dict.placeholder(int),
    # Where they are: a folder, or a bucket's (gs://...); '' =
    # WORKDIR/checkpoints. A run goes on from there in a new WORKDIR too.
    folder='',
    # Whether a run may go on with other training problems than it was saved
    # with; it says so.
    allow_changed_data=False,
  )


def _train():
  return dict(
    # Rollout steps.
    steps=100,
    # Sampled responses written to samples.jsonl in a step.
    samples_logged=8,
    # Most time from Ctrl-C or SIGTERM to the end of the process, [s]; the
    # state is saved in it if that is possible. TPU machines that are taken
    # away are given 30 s.
    grace_s=25.0,
    # Of several processes: a wait for others this long is told, [s], and
    # again after as long.
    wait_warn_s=120.0,
  )


def _profile():
  return dict(
    # First rollout step, from 1, traced to WORKDIR/profile, and how many.
    first_step=config_dict.placeholder(int),
    steps=1,
  )


def _plan():
  return dict(
    # What `dapo-jax plan` reckons with; a run does not look at it. Mean of the
    # prompts and of the responses, cut ones as they are cut, [tokens]; None = a
    # seventh of the longest (about DAPO's 3,000 of 20,480, figure 7).
    prompt_tokens_mean=config_dict.placeholder(int),
    response_tokens_mean=config_dict.placeholder(int),
    # Spread of the responses, which are log-normal: the standard deviation of
    # the logarithm (ours).
    response_tokens_sigma=1.0,
    # Share of the drawn prompts that pass the filter (ours).
    kept_frac=0.5,
  )
