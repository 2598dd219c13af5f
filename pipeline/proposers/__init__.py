"""Who writes candidates: search, openai, mailbox, replay."""
