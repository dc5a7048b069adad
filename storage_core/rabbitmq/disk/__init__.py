"""The content of a vhost's directory."""
