"""A real nginx on free ports of this machine, with TLS, for a configuration that a test gives."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.child import free_port
from tests.chromium import debians
from tests.worker_process import PATIENCE_S, eventually

_FRAME = """
daemon off; master_process off; pid {folder}/pid; error_log stderr error;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    {servers}
}}
"""


@contextmanager
def nginx(folder: Path, servers: str) -> Iterator[tuple[int, int]]:
    """The ports of HTTP and of TLS. `servers` are blocks of `server`, in which PLAIN and TLS are these ports."""
    program = debians("nginx")
    plain, tls = free_port(), free_port()
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=llm.example.org")
    subprocess.run([*made, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    file = folder / "nginx.conf"
    file.write_text(_FRAME.format(folder=folder, servers=servers.replace("PLAIN", str(plain)).replace("TLS", str(tls))))
    with subprocess.Popen([program, "-p", folder, "-c", file]) as process:
        try:
            eventually(lambda: process.poll() is not None or (folder / "pid").exists())
            assert process.poll() is None, "nginx has ended; it says why on stderr"
            yield plain, tls
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
