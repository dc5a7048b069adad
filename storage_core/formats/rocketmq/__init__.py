"""The bytes of a RocketMQ store. Source of the rules: the pages in `docs/format/`."""
