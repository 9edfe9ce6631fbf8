"""Which files PAM gives variables from, by the files of sshd, cron and pam.d of distributions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterprep.remote.agent import pam

Lay = Callable[..., None]

# /etc/pam.d/sshd of Debian 12 (openssh-server 9.2p1), without comments.
DEBIAN_SSHD = """\
@include common-auth
account    required     pam_nologin.so
@include common-account
session [success=ok ignore=ignore module_unknown=ignore default=bad]        pam_selinux.so close
session    required     pam_loginuid.so
session    optional     pam_motd.so  motd=/run/motd.dynamic
session    required     pam_env.so # [1]
session    required     pam_env.so user_readenv=1 envfile=/etc/default/locale
@include common-password
"""
# As authselect of the RHEL family 9 lays them, without what has nothing to do with variables.
RHEL_SSHD = """\
#%PAM-1.0
auth       substack     password-auth
auth       include      postlogin
account    required     pam_sepermit.so
session    required     pam_selinux.so close
session    include      password-auth
"""
RHEL_PASSWORD_AUTH = """\
auth        required                                     pam_env.so
auth        sufficient                                   pam_unix.so nullok
session     optional                                     pam_keyinit.so revoke
-session    optional                                     pam_systemd.so
"""


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lay:
    """Lay files of /etc/pam.d and /etc/ssh/sshd_config."""
    services = tmp_path / "pam.d"
    services.mkdir()
    config = tmp_path / "sshd_config"
    monkeypatch.setattr(pam, "SERVICES", (f"{services}/",))
    monkeypatch.setattr(pam, "SSHD_CONFIG", str(config))

    def write(sshd_config: str = "UsePAM yes\n", **files: str) -> None:
        config.write_text(sshd_config)
        for name, text in files.items():
            (services / name.replace("_", "-")).write_text(text)

    return write


def paths(sources: pam.Sources) -> list[str]:
    return [path for path, _ in sources.files]


def test_debian_reads_two_files(lay: Lay) -> None:
    lay(sshd=DEBIAN_SSHD, common_auth="auth required pam_unix.so\n")
    sources = pam.of_sshd()
    assert paths(sources) == ["/etc/environment", "/etc/default/locale"]
    assert sources.reads() == [True, ""]


def test_the_rhel_family_sets_variables_with_the_credentials(lay: Lay) -> None:
    lay(sshd=RHEL_SSHD, password_auth=RHEL_PASSWORD_AUTH)
    assert paths(pam.of_sshd()) == ["/etc/environment"]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("session required pam_env.so", ["/etc/environment"]),
        ("-session optional /usr/lib/security/pam_env.so debug", ["/etc/environment"]),
        ("session [success=1 default=ignore] pam_env.so", ["/etc/environment"]),
        ("session required pam_env.so envfile=/etc/site.env", ["/etc/site.env"]),
        ("session required pam_env.so readenv=0", []),
        ("session required \\\n pam_env.so", ["/etc/environment"]),
        ("account required pam_env.so", []),
        ("#session required pam_env.so", []),
        ("session required pam_envy.so", []),
        ("session", []),
    ],
)
def test_lines_of_a_service(lay: Lay, line: str, files: list[str]) -> None:
    lay(sshd=f"{line}\n")
    assert paths(pam.of_sshd()) == files


def test_only_lines_of_the_type_that_is_taken_in_count(lay: Lay) -> None:
    lay(sshd="account include more\nsession include more\n", more="auth required pam_env.so\n")
    assert paths(pam.of_sshd()) == []
    lay(sshd="@include more\n")
    assert paths(pam.of_sshd()) == ["/etc/environment"]


def test_services_that_name_each_other_end(lay: Lay) -> None:
    lay(sshd="session include sshd\nsession required pam_env.so\n")
    assert "/etc/environment" in paths(pam.of_sshd())


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("UsePAM no\n", "UsePAM is not yes in"),
        ("# UsePAM yes\n", "UsePAM is not yes in"),
        ("Match User x\nUsePAM yes\n", "UsePAM is not yes in"),
        ("UsePAM no\nUsePAM yes\n", "UsePAM is not yes in"),
        ("usepam=yes\n", ""),
        ('USEPAM "yes"\n', ""),
        ("UsePAM yes\nUsePAM no\n", ""),
    ],
)
def test_the_first_word_of_sshd_about_pam_counts(lay: Lay, config: str, why: str) -> None:
    lay(config, sshd="session required pam_env.so\n")
    reads, said = pam.of_sshd().reads()
    assert (reads, said.startswith(why)) == (not why, True)


def test_included_files_of_sshd_count_where_they_are_named(lay: Lay, tmp_path: Path) -> None:
    folder = tmp_path / "sshd_config.d"
    folder.mkdir()
    (folder / "50-redhat.conf").write_text("UsePAM yes\n")
    (folder / "60.off").write_text("UsePAM no\n")
    lay(f"Include {folder}/*.conf\nUsePAM no\n", sshd="session required pam_env.so\n")
    assert pam.of_sshd().reads() == [True, ""]


def test_without_the_files_it_is_not_known(lay: Lay, tmp_path: Path) -> None:
    lay(sshd="session required pam_env.so\n")
    (tmp_path / "sshd_config").unlink()
    assert pam.of_sshd().reads()[0] is None
    lay()
    (tmp_path / "pam.d/sshd").unlink()
    assert pam.of_sshd().reads()[0] is None


# What pam_env of Linux-PAM 1.5.2 made of such lines, by su(1) on Debian 12.
@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("B=\\\n\n# x\nC=3\n", {"B": "C=3"}),
        ("B=x \\\n  C=3\n", {"B": "x   C=3"}),
        ("B=x\\", {}),
        ("B=x  \n", {"B": "x  "}),
        ("C=\"a'\n", {"C": "a"}),
        ("D='it's a'\n", {"D": "it's a"}),
        ('E="x" \n', {"E": 'x" '}),
        ("G='\n", {"G": ""}),
        ("export  H=1\n-X=1\n K = 1\n", {}),
        ('L="a#b"\n', {"L": "a"}),
        ("A=1\nA\n", {}),
    ],
)
def test_environment_files_as_pam_reads_them(text: str, variables: dict[str, str]) -> None:
    assert pam.parse_environment(text) == variables


def test_crontabs_set_variables(lay: Lay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "crontab"
    table.write_text(
        '# NCCL_X=1\nSHELL=/bin/sh\n NCCL_DEBUG = "IN FO"\n* * * * * root NCCL_Y=1 x\n'
    )
    monkeypatch.setattr(pam, "CRONTABS", (str(table),))
    monkeypatch.setattr(pam, "SPOOLS", (f"{tmp_path}/none/",))
    monkeypatch.setattr(pam.os, "geteuid", lambda: 0)
    rows = pam.crontabs("alice")
    assert rows == [[str(table), [[3, 'NCCL_DEBUG="IN FO"']]]]
    sources = pam.Sources([["/etc/environment", "NCCL_DEBUG=WARN\nNCCL_ALGO=Ring\nOTHER=1\n"]])
    assert pam.job_of_cron(sources, rows) == ["ok", {"NCCL_DEBUG": "IN FO", "NCCL_ALGO": "Ring"}]
