"""What a command ends in: a user's mistake, or what it printed."""

import pytest

from levelfield.core.errors import UserError


def refused(result, *words):
    """One line, which it returns, exit code 2, and the words that help."""
    code, _, complaint = result
    assert code == 2, complaint
    assert complaint.count("\n") == 1, complaint
    assert "Traceback" not in complaint
    for word in words:
        assert word in complaint, complaint
    return complaint


def succeeded(result):
    """What a command printed that ended well."""
    code, printed, complaint = result
    assert code == 0, complaint
    return printed


def refuses(key, function, *arguments, **options):
    """The one line of the UserError in which a call ends, where `key` is found."""
    with pytest.raises(UserError, match=key) as mistake:
        function(*arguments, **options)
    assert "\n" not in str(mistake.value)
    return str(mistake.value)
