"""Adapters to state machine libraries. Each makes charts; none touches a database or a clock."""
