"""Durable files: run folders, the result cache, locks and atomic writes."""
