"""What a proposer is told: Markdown templates, rendered strictly and hashed into every record."""
