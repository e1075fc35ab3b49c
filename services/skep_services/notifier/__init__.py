"""The notifier: tells people what becomes of their jobs, by mail, chat and webhooks."""
