# The image of the dispatcher: `docker build --tag appwrapper-dispatcher:0.1.0 .`
#
# The builder downloads what requirements.lock pins and checks each hash, builds the wheel from the checkout, and installs
# it without the network. The runtime has the interpreter and the installed packages: no compiler, no pip of its own.
# It runs as uid 65532, writes no file outside /tmp, and needs no capability.
# By digest, so that a build is the same tomorrow; CONTRIBUTING.md says when to take a newer one.
ARG PYTHON_IMAGE=python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7

FROM ${PYTHON_IMAGE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements.lock ./
RUN pip download --quiet --require-hashes --only-binary :all: --requirement requirements.lock --dest /wheels
RUN python -m venv /build/tools \
    && /build/tools/bin/pip install --quiet --no-index --find-links /wheels hatchling
COPY . .
# Of the pinned packages only those that the wheel requires with its extra `server` are installed.
RUN /build/tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /dist . \
    && python -m venv --without-pip /opt/dispatcher \
    && pip --python /opt/dispatcher/bin/python install --quiet --no-index --find-links /wheels "$(ls /dist/*.whl)[server]"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="appwrapper-dispatcher" \
    org.opencontainers.image.description="Queues AppWrappers in Postgres and creates their wrapped objects only when the whole gang fits" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}"
RUN groupadd --gid 65532 dispatcher \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dispatcher
COPY --from=builder /opt/dispatcher /opt/dispatcher
ENV PATH=/opt/dispatcher/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DISPATCHER_LISTEN_ADDRESS=0.0.0.0 \
    DISPATCHER_LISTEN_PORT=8081
USER 65532:65532
EXPOSE 8081
# Not urllib, which would send the request to a proxy of the environment.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import http.client, os, sys; probe = http.client.HTTPConnection('127.0.0.1', int(os.environ['DISPATCHER_LISTEN_PORT']), timeout=3); probe.request('GET', '/healthz'); sys.exit(probe.getresponse().status != 200)"]
ENTRYPOINT ["dispatcher"]
CMD ["run"]
