"""Events from other systems to the one durable state machine each belongs to, exactly once."""
