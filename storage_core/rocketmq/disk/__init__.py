"""What lies in a RocketMQ store directory."""
