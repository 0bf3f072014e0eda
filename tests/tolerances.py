"""How far apart two numbers may be, by type and by what is compared.

Chosen from the arithmetic, not from results; never loosened to pass.
"""

# Largest absolute difference between two orders of the same arithmetic.
F64 = 1e-12
F32_ATOL = 1e-5
BF16 = 2e-2
ATOL = {'float64': F64, 'float32': F32_ATOL, 'bfloat16': BF16}

# Attention by another way, and its gradients, of entries of deviation 1: sums
# in another order, and a scale that is put elsewhere.
ATTENTION = {'float32': 2e-5, 'bfloat16': 2e-2}

# Norm of the difference of two gradients over the norm of one, in float32.
F32_GRAD_REL = 1e-5
# Log-probabilities and entropies of a few logits at a time against all, nats.
F32_LOGP = 1e-6
# Logits against transformers' own, in float32.
PARITY_F32 = 2e-4
# Root of the mean square of their difference in bfloat16, over that of the
# logits: two roundings, each as far from the truth as BF16 allows.
PARITY_BF16 = 3e-2
# Log-probabilities of decoding with a cache against whole rows, nats: the
# largest difference in float32, the root of the mean square in bfloat16.
DECODE_LOGP = 1e-4
DECODE_LOGP_BF16_RMS = 5e-2
# A number against its int8 copy, in scales: half a step, and what the float32
# quotient of less than 127.5 is off, 127.5 * 2^-24 = 7.6e-6.
INT8_SCALES = 0.5 + 1e-5
# Mean gap of log-probs with an int8 cache, [nats]: on SmolLM2 it is 0.010
# (`bench/cache_gap.py`), tiny random models are no worse.
INT8_CACHE_LOGP_MEAN = 2e-2
