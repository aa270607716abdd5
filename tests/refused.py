"""What a command ends in: a user's mistake, or what it printed."""


def refused(result, *words):
    """One line, exit code 2, and the words that help."""
    code, _, complaint = result
    assert code == 2, complaint
    assert complaint.count("\n") == 1, complaint
    assert "Traceback" not in complaint
    for word in words:
        assert word in complaint, complaint


def succeeded(result):
    """What a command printed that ended well."""
    code, printed, complaint = result
    assert code == 0, complaint
    return printed
