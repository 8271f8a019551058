"""What the tests share: servers, databases, a proxy, child processes, views of locks."""
