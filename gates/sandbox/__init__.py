"""Fences for untrusted code, strongest first."""
