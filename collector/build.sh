#!/bin/sh
# Builds the collector of builder-config.yaml with OpenTelemetry's builder, and prints its path. The
# result is cached in the user's cache folder for each manifest. Needs Go 1.25 or newer.
set -eu
cd "$(dirname "$0")"

version=v0.155.0
manifest="$(pwd)/builder-config.yaml"
hash=$(cat builder-config.yaml build.sh | cksum | cut -d ' ' -f 1)
home="${XDG_CACHE_HOME:-$HOME/.cache}/rag-eval-otel/collector-$hash"

build() {
    rm -rf _build
    mkdir _build
    GOBIN="$home" nice go install "go.opentelemetry.io/collector/cmd/builder@$version"
    # The list of modules is made here and completed by the compiler. The builder would run
    # `go mod tidy`, which downloads twice as much, including dependencies of the components' tests.
    export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod"
    (
        cd _build
        go mod init rag-eval-otel/collector
        sed -n 's/.*gomod: \(.*\) \(v.*\)/-require=\1@\2/p' "$manifest" | xargs go mod edit
        go mod edit "-require=go.opentelemetry.io/collector/otelcol@$version"
    )
    nice ./builder --config="$manifest" --skip-get-modules
    mv _build/otelcol-rag-eval .  # last: what is there is whole
    rm -rf _build builder
}

mkdir -p "$home"
if command -v flock > /dev/null; then # who comes second waits, and finds it built
    exec 9> "$home/.lock"
    flock 9
fi
if [ ! -x "$home/otelcol-rag-eval" ]; then
    (cd "$home" && build) >&2
fi
echo "$home/otelcol-rag-eval"
