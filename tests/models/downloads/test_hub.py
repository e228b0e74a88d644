"""`models pull` with the real hub client against the stand-in: what the hub says is believed, checked and explained."""

import re
import subprocess
import sys

import pytest

from tests.hub_stand_in import COMMIT, HubStandIn, Refusal
from tests.models.downloads.puller import (
    CONTENT,
    DIGEST,
    PATIENCE_S,
    REFERENCE,
    REPO,
    Puller,
    complaint,
    files_in,
    pulled,
)

pytestmark = pytest.mark.process

_SHARE = re.compile(r": (\d+) % ")
"""The percentage in a progress line."""


def test_hub_file_arrives_whole_and_credentials_stay_on_the_hub(hub: HubStandIn, puller: Puller) -> None:
    path = pulled(puller.pull(HF_TOKEN="hf_secret"))
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(puller.models_dir)
    assert files_in(puller.models_dir) == {"tiny.gguf"}
    assert hub.n_body_bytes == len(CONTENT)
    authorization = {asked.path.startswith("/cdn/"): asked.authorization for asked in hub.asked}
    assert authorization == {False: "Bearer hf_secret", True: None}


def test_catalogue_name_is_pulled_once_and_then_found(hub: HubStandIn, puller: Puller) -> None:
    catalog = puller.catalog()
    path = pulled(puller.pull("tiny", LLORCH_CATALOG=catalog))
    assert path == puller.models_dir / "tiny.gguf"
    n_asked = len(hub.asked)
    assert pulled(puller.pull("tiny", LLORCH_CATALOG=catalog)) == path
    assert pulled(puller.pull(str(path))) == path
    assert len(hub.asked) == n_asked


def test_cut_connection_is_continued_where_it_ended(hub: HubStandIn, puller: Puller) -> None:
    hub.cut_once_after = len(CONTENT) // 2
    assert pulled(puller.pull()).read_bytes() == CONTENT
    assert [asked.range for asked in hub.body_requests()] == [None, f"bytes={len(CONTENT) // 2}-"]
    assert hub.n_body_bytes == len(CONTENT)


def test_killed_pull_is_continued_by_the_next_one(hub: HubStandIn, puller: Puller) -> None:
    hub.gate_after = len(CONTENT) * 2 // 3
    with puller.start("pull", REFERENCE) as child:
        assert child.stderr is not None
        assert any(int(share[1]) >= 50 for share in map(_SHARE.search, child.stderr) if share)
        child.kill()
        child.communicate()
    assert files_in(puller.models_dir) == {"tiny.gguf.partial"}
    hub.gate_after = None
    hub.gate.set()
    sent_before = hub.n_body_bytes
    assert pulled(puller.pull()).read_bytes() == CONTENT
    assert hub.n_body_bytes - sent_before <= len(CONTENT) * 0.6


def test_wrong_digest_leaves_nothing_and_reports_both(hub: HubStandIn, puller: Puller) -> None:
    hub.stated_sha256 = "1" * 64
    line = complaint(puller.pull())
    assert DIGEST in line
    assert "1" * 64 in line
    assert files_in(puller.models_dir) == set()


def test_file_that_the_hub_replaced_is_refused_before_a_byte_of_it_is_sent(hub: HubStandIn, puller: Puller) -> None:
    line = complaint(puller.pull("tiny", LLORCH_CATALOG=puller.catalog(sha256="2" * 64)))
    assert DIGEST in line
    assert "2" * 64 in line
    assert hub.n_body_bytes == 0


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal(401, "GatedRepo"), "acme/tiny-gguf is gated"),
        (Refusal(403, "GatedRepo"), "set HF_TOKEN"),
        (Refusal(401, "RepoNotFound"), "does not exist or is private"),
        (Refusal(403), "acme/tiny-gguf may not be read: set HF_TOKEN"),
        (Refusal(404, "RepoNotFound"), "check its name"),
        (Refusal(500), "try again later"),
    ],
)
def test_refusal_of_the_hub_says_what_to_do(refusal: Refusal, expected: str, hub: HubStandIn, puller: Puller) -> None:
    hub.refusals[REPO] = refusal
    line = complaint(puller.pull())
    assert expected in line
    assert f"HTTP {refusal.status}" in line


def test_repository_name_that_the_hub_does_not_allow_is_a_clear_line(puller: Puller) -> None:
    assert "cannot be asked for acme/a--b" in complaint(puller.pull("hf:acme/a--b::file=tiny.gguf"))


def test_missing_file_and_missing_revision_are_named(puller: Puller) -> None:
    assert "no file other.gguf" in complaint(puller.pull(f"hf:{REPO}::file=other.gguf"))
    assert "no revision v9" in complaint(puller.pull(f"hf:{REPO}@v9::file=tiny.gguf"))


def test_only_gguf_of_a_repository_needs_no_name_and_is_found_offline_afterwards(
    hub: HubStandIn, puller: Puller
) -> None:
    hub.add(REPO, "README.md", b"not weights")
    path = pulled(puller.pull(f"hf:{REPO}"))
    assert path.read_bytes() == CONTENT
    assert pulled(puller.run("path", f"hf:{REPO}", HF_HUB_OFFLINE="1")) == path


def test_several_ggufs_are_listed_and_none_is_a_clear_line(hub: HubStandIn, puller: Puller) -> None:
    hub.add(REPO, "big.gguf", b"")
    line = complaint(puller.pull(f"hf:{REPO}"))
    assert "2 .gguf files" in line
    assert "big.gguf, tiny.gguf" in line
    hub.add("acme/empty", "README.md", b"")
    assert "no .gguf file" in complaint(puller.pull("hf:acme/empty"))


def test_a_quantisation_names_its_file_and_is_found_offline_afterwards(hub: HubStandIn, puller: Puller) -> None:
    for quant in ("Q4_K_M", "Q8_0"):
        hub.add("acme/sizes-GGUF", f"m-{quant}.gguf", quant.encode())
    for reference in ("acme/sizes-GGUF:Q8_0", "hf:acme/sizes-GGUF@main:q4_k_m"):
        quant = reference.rpartition(":")[2].upper()
        path = pulled(puller.pull(reference))
        assert (path.name, path.read_bytes()) == (f"m-{quant}.gguf", quant.encode())
        assert pulled(puller.run("path", reference, HF_HUB_OFFLINE="1")) == path


def test_all_parts_of_a_split_file_are_fetched(hub: HubStandIn, puller: Puller) -> None:
    names = [f"m-0000{part}-of-00002.gguf" for part in (1, 2)]
    for name in names:
        hub.add(REPO, name, name.encode())
    path = pulled(puller.pull(f"hf:{REPO}::file={names[0]}"))
    assert path.name == names[0]
    assert files_in(puller.models_dir) == set(names)


def test_file_in_the_hub_cache_is_linked_without_asking_the_hub(hub: HubStandIn, puller: Puller) -> None:
    script = f"from huggingface_hub import hf_hub_download; print(hf_hub_download({REPO!r}, 'tiny.gguf'))"
    filled = subprocess.run(
        [sys.executable, "-c", script], env=puller.env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    n_asked = len(hub.asked)
    path = pulled(puller.pull(HF_HUB_OFFLINE="1"))
    assert path.samefile(filled.stdout.strip())
    assert path.is_file()
    assert not path.is_symlink()
    assert len(hub.asked) == n_asked


def test_wrong_file_in_the_hub_cache_is_not_used(hub: HubStandIn, puller: Puller) -> None:
    cache = puller.home / "hf/hub/models--acme--tiny-gguf"
    snapshot = cache / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "tiny.gguf").write_bytes(b"damaged")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)
    assert pulled(puller.pull()).read_bytes() == CONTENT


def test_unreachable_hub_and_offline_mode_are_clear_lines(puller: Puller) -> None:
    for reference in (REFERENCE, f"hf:{REPO}"):
        assert "check your network" in complaint(puller.pull(reference, HF_ENDPOINT="http://127.0.0.1:1"))
    assert "HF_HUB_OFFLINE is set" in complaint(puller.pull(HF_HUB_OFFLINE="1"))
