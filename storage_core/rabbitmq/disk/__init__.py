"""What lies in a vhost's directory."""
