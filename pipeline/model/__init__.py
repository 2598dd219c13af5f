"""Decode layers of the model pack, built from its ops."""
