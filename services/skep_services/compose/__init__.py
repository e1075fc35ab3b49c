"""What `docker compose` needs beside the services: credentials, streams, health checks."""
