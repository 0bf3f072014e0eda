"""What a fault in a configuration is, and how it is told."""


class ConfigError(ValueError):
  """A fault in what the user set; its text is one line that says the remedy."""


def require(holds: bool, rule: str, *paths: str) -> None:
  """Raises a ConfigError of `rule` and the flags that change `paths`."""
  if not holds:
    flags = ' or '.join(f'--config.{path}' for path in paths)
    raise ConfigError(f'{rule}; change {flags}')
