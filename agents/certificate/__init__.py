"""The certificate of a memory core: checks that any core, built-in or custom, satisfies the contract exactly."""
