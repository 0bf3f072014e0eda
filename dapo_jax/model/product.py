"""Products of hidden states and weights, and their gradients."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def of_rows(
  x: Float[Array, '*B D'], weight: Float[Array, 'D F']
) -> Float[Array, '*B F']:
  """Returns `x @ weight`, whose gradient XLA:CPU takes without a copy.

  The weight's gradient is a sum over all axes of `x` but the last. XLA:CPU
  copies both factors, element by element, into an order in which there is one
  such axis; where they are one from the beginning it does not. Elsewhere
  the axes stay apart, for a mesh may split them.
  """
  return x @ weight


def _forward(x, weight):
  return x @ weight, (x, weight)


def _backward(factors, grad):
  x, weight = factors
  weight_grad = jax.lax.platform_dependent(
    x, grad, cpu=_summed_as_one, default=_summed_apart
  )
  x_grad = (grad @ weight.T).astype(x.dtype)
  return x_grad, weight_grad.astype(weight.dtype)


def _summed_as_one(x, grad):
  flat = lambda y: y.reshape(-1, y.shape[-1])
  return jnp.einsum('td,tf->df', flat(x), flat(grad))


def _summed_apart(x, grad):
  return jnp.einsum('...d,...f->df', x, grad)


of_rows.defvjp(_forward, _backward)
