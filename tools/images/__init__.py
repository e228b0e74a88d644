"""The container images, built and driven from outside: `make images-test`, or python -m tools.images [cpu cuda metal].

They are not part of `make test`: they need podman and buildah, and minutes.
"""
