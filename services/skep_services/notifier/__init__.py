"""The notifier: notifies people of what becomes of their jobs, by mail, chat and webhooks."""
