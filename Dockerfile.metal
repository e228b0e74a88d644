# Builds llorch-worker for a Mac's GPU through Vulkan, because no container reaches Metal itself. The image is for Linux
# (arm64; amd64 for its tests). Its calls leave the virtual machine and become Metal outside:
#
#   llama.cpp → Vulkan → Mesa's Venus driver → virtio-gpu → libkrun on macOS → MoltenVK → Metal
#
# So it needs a virtual machine with that path: podman machine with the provider libkrun, or krunkit under Lima or Colima.
# Others (Apple's `container`, Docker Desktop without its own VMM) do not have it, and the worker computes on the CPU.
# Expect three quarters of Metal's native speed. scripts/install_metal.sh installs natively, which is better.
#
#   podman build -f Dockerfile.metal -t llorch-worker:metal .
#   podman run --rm --read-only --cap-drop ALL --device /dev/dri -p 8080:8080 -v "$PWD/models:/models:ro" \
#       llorch-worker:metal --model x.gguf --device vulkan
#
# With `--device vulkan` the worker does not start without a GPU. Without the flag it uses the CPU and says so. If answers
# are wrong or the worker crashes in a step, try `--flash-attn off`.
# Limits: the image was not tried on a Mac. Apple silicon has pages of 16 KiB, and a guest's Mesa must align memory to them.
# Debian's does not, so you may need a BASE with a Mesa that does. On other machines the image serves every GPU that Mesa
# drives through /dev/dri, which are AMD's and Intel's.
#
# Arguments: BASE   a Debian with Vulkan headers 1.3.272 or newer, such as trixie; or one derived from it.
#            WHEEL  build: compile llama.cpp here, which takes ten minutes or more;
#                   prebuilt: use the wheel in dist/wheels/vulkan, which scripts/build_llama.sh vulkan --portable makes.
# Half of the image's 500 MB are Mesa's drivers and the LLVM that they compile with. See docs/images.md for everything else.

ARG BASE=debian:trixie-slim
ARG WHEEL=build

# ── the base of the image, and the tools that build it ────────────────────────────────────────────
FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        ca-certificates libgomp1 libvulkan1 mesa-vulkan-drivers python3 python3-pip-whl \
    # Not needed: drivers for Windows, emulators, old Intel GPUs and NVIDIA's (which have their own image); overlays.
    && for driver in dzn gfxstream intel_hasvk nouveau; do \
        rm -f /usr/lib/*/libvulkan_$driver.so /usr/share/vulkan/icd.d/${driver}_*; done \
    && rm -rf /usr/share/vulkan/explicit_layer.d /usr/lib/*/libVkLayer_MESA_overlay.so \
        /usr/lib/*/libVkLayer_INTEL_nullhw.so /usr/share/X11/locale /usr/lib/python3*/pydoc_data /usr/lib/python3*/test \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*

FROM python AS tools
RUN apt-get update && apt-get install --yes --no-install-recommends binutils python3-venv && python3 -m venv /tools

# ── llama.cpp ─────────────────────────────────────────────────────────────────────────────────────
FROM tools AS wheel-build
RUN apt-get install --yes --no-install-recommends g++ glslc libvulkan-dev spirv-headers
WORKDIR /source
COPY pyproject.toml ./
COPY scripts/glslc_without_nvidia.sh /usr/local/bin/glslc
COPY patches/ patches/
COPY scripts/build_llama.sh scripts/apply_patches.py scripts/tile_product.c scripts/
RUN PYTHON=/tools/bin/python LLORCH_WHEELS=/built scripts/build_llama.sh vulkan --portable \
    && mkdir /wheels && mv /built/*/*.whl /wheels/

FROM scratch AS wheel-prebuilt
COPY dist/wheels/vulkan/ /wheels/

# hadolint ignore=DL3006
FROM wheel-${WHEEL} AS wheel

# ── one layer for the libraries, which change rarely, and one for the worker, which changes often ─
FROM tools AS libraries
WORKDIR /source
COPY pyproject.toml constraints.txt ./
COPY scripts/image_libraries.sh scripts/
COPY --from=wheel /wheels/ /wheels/
ARG EXTRAS=
RUN scripts/image_libraries.sh /opt/llorch-worker /wheels/*.whl "$EXTRAS"

FROM libraries AS worker
COPY LICENSE README.md models.toml ./
COPY patches/*.LICENSE.txt patches/
COPY worker/ worker/
COPY parity/ parity/
COPY client/ client/
RUN /tools/bin/python -m pip --python /opt/llorch-worker/bin/python install \
    --no-cache-dir --disable-pip-version-check --no-deps --root /installed . \
    && find /installed/opt/llorch-worker/lib/python3*/site-packages/parity -name __pycache__ -prune -exec rm -rf {} +

# ── the image ─────────────────────────────────────────────────────────────────────────────────────
FROM python
COPY --from=libraries /opt/llorch-worker /opt/llorch-worker
COPY --from=worker /installed/opt/llorch-worker /opt/llorch-worker
# The bill of materials lists the Python packages and Debian's.
RUN --mount=type=bind,source=scripts/bill_of_materials.py,target=/tmp/bill.py \
    python3 /tmp/bill.py --debian /opt/llorch-worker/lib/python3*/site-packages \
        >/opt/llorch-worker/bill-of-materials.cdx.json

# A new volume takes the folder's owner, so that the worker may put models there.
RUN install --directory --owner=10001 --group=10001 /models

# The worker writes nothing else: the bytecode is compiled already and the driver keeps no compiled shaders, so the file
# system may be read-only.
ENV PATH=/opt/llorch-worker/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    MESA_SHADER_CACHE_DISABLE=true \
    HOME=/nonexistent \
    LLORCH_HOST=0.0.0.0 \
    LLORCH_MODELS_DIR=/models
# The user is a number, so that Kubernetes can see that it is not root. Its group owns nothing. If only its group may open
# /dev/dri/renderD128, run with `--group-add` and that group's number.
USER 10001:10001
# The folder belongs to root, so no user of the container can put a file there that Python would load.
WORKDIR /opt/llorch-worker
EXPOSE 8080
STOPSIGNAL SIGTERM
# The check asks whether the worker is alive, not whether it is ready: one that loads its model must not be restarted.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f\"http://127.0.0.1:{os.environ.get('LLORCH_PORT', 8080)}/livez\", timeout=4)"]
ENTRYPOINT ["llorch-worker"]

ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="llorch-worker" \
      org.opencontainers.image.description="Serves one quantised GGUF model to a pool manager, on GPUs through Vulkan" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
