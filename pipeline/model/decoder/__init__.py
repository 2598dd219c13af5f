"""The decode model of the pack, built only from its ops: configurations, weights, states, steps, sessions."""
