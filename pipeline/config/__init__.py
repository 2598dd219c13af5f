"""Settings of models, endpoints and prices, each with its origin: flags, environment, files, defaults."""

from kgen.config.keys import OPTIMISE, REPAIR, ROLES, ConfigError
from kgen.config.load import Config, ModelSettings, load

__all__ = ["OPTIMISE", "REPAIR", "ROLES", "Config", "ConfigError", "ModelSettings", "load"]
