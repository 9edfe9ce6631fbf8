"""Which package manager a node's packages belong to: that of its distribution.

A Debian with dnf for building images still has the packages of apt, so /etc/os-release counts
first. A distribution that is not known has the first manager that is there.
"""

from __future__ import annotations

NOT_MINE = 75  # exit code of a script that is for another package manager
# Constant text for sh.
_MANAGER = r"""
manager() (
    ID= ID_LIKE=
    [ -r /etc/os-release ] && . /etc/os-release
    for word in $ID $ID_LIKE; do
        case $word in
        debian|ubuntu) echo apt; return ;;
        fedora|rhel|centos) echo dnf; return ;;
        suse|opensuse) echo zypper; return ;;
        alpine) echo apk; return ;;
        esac
    done
    for program in apt-get zypper dnf yum apk; do
        if command -v $program >/dev/null; then
            case $program in apt-get) echo apt ;; yum) echo dnf ;; *) echo $program ;; esac
            return
        fi
    done
    echo none
)
"""


def only_for(name: str) -> str:
    """Return the head of a script that ends with NOT_MINE where another manager is in charge."""
    return f'{_MANAGER}[ "$(manager)" = {name} ] || exit {NOT_MINE}\n'
