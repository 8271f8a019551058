"""Ties to other libraries, each a module with an extra of its name. Nothing else imports them."""
