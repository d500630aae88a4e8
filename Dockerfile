# The controller on top of an image that has vLLM: engines are its subprocesses, so both live in one container.
#
#   docker build -t vllm-mm .                                             on vLLM's own image (CUDA)
#   docker build -t vllm-mm --build-arg BASE=your/vllm:tag .              on another one
#   docker build -t vllm-mm-sim --build-arg BASE=python:3.12-slim .       without vLLM: for simulated engines
ARG BASE=vllm/vllm-openai:v0.32.0

# The dashboard, where there is one: built with Node, which the final image does not need.
FROM node:22-slim AS dashboard
WORKDIR /src
COPY . .
RUN mkdir -p backend/vllm_mm/static \
    && if [ -f frontend/package.json ]; then cd frontend && npm install --no-save --no-audit --no-fund && npm run build; fi

FROM ${BASE}
USER root
WORKDIR /opt/vllm-mm
# An environment of its own: the controller's packages and the engine's never meet. `vllm` stays on PATH from the base image.
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then \
        apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/vllm-mm/venv \
    && /opt/vllm-mm/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY backend backend
COPY migrations migrations
COPY packaging/demo packaging/demo
COPY --from=dashboard /src/backend/vllm_mm/static backend/vllm_mm/static
RUN /opt/vllm-mm/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps . \
    && ln -s /opt/vllm-mm/venv/bin/vllm-mm /usr/local/bin/vllm-mm \
    && (id -u 10001 >/dev/null 2>&1 || useradd --uid 10001 --create-home --home-dir /home/mm --shell /usr/sbin/nologin mm) \
    && install -d -o 10001 -g 10001 -m 0700 /state \
    && install -d -o 10001 -g 10001 /cache /cache/huggingface /config

# Not root. GPUs need no root; a cache volume that root made has to be given to uid 10001 once.
USER 10001
ENV HOME=/home/mm \
    HF_HOME=/cache/huggingface \
    VLLM_MM_PATHS__DATA_DIR=/state \
    VLLM_MM_PATHS__CACHE_DIR=/cache/vllm-mm \
    VLLM_MM_SERVER__HOST=0.0.0.0 \
    VLLM_MM_SERVER__PORT=8000
VOLUME ["/state", "/cache"]
EXPOSE 8000
# Alive: answered without touching an engine, so a long load does not look like a dead container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/vllm-mm/venv/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# SIGTERM: requests in flight are finished within the grace, the engines are ended, then the exit code is 0.
STOPSIGNAL SIGTERM
ENTRYPOINT ["vllm-mm"]
CMD ["serve", "--config", "/config/vllm-mm.yaml"]
