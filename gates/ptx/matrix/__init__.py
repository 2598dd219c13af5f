"""Matrix instructions: fragments, shared-memory layouts and tensor maps as pure functions on arrays."""
