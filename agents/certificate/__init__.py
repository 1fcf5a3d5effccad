"""The certificate of a memory core: checks that it keeps exactly what the contract promises, ours or anyone's."""
