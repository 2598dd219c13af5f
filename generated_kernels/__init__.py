"""The promoted kernels: sources, evidence, objects and the manifest. Data; nothing here is imported."""
