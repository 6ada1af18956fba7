#!/usr/bin/env bash
# Tests the driver for Kubernetes: its format and lints, its tests with csi-sanity among them, and its manifests.
#
#   scripts/test-csi.sh           test
#   scripts/test-csi.sh --write   write csi/deploy/ferrite-csi.yaml anew, of the chart
#
# FERRITE_BIN names the program `ferrite`. Parts whose tools are missing are skipped, aloud: Go as new as csi/go.mod
# wants it; helm; and, for manifests, the wheel kubernetes-validate, which is kept in ~/.cache/ferrite/python.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root/csi"
manifests=deploy/ferrite-csi.yaml
kubernetes=1.30

rendered() {
    echo "# Made of csi/chart by scripts/test-csi.sh --write. The namespace ferrite must exist."
    helm template ferrite-csi chart --namespace ferrite --kube-version "$kubernetes.0"
}

if [ "${1:-}" = --write ]; then
    mkdir -p deploy
    rendered >"$manifests"
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
PATH=$PATH:/usr/local/go/bin
wanted=$(sed -n 's/^go //p' go.mod)
found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//') || true
if [ -z "$found" ] || [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
    echo "SKIPPED: tests of the driver for Kubernetes need Go $wanted; found: ${found:-none}"
elif ! go mod download 2>"$scratch/modules"; then
    echo "SKIPPED: tests of the driver for Kubernetes need its modules: $(tail -n 1 "$scratch/modules")"
else
    unformatted=$(gofmt -l .)
    [ -z "$unformatted" ] || { echo "not as gofmt has it: $unformatted"; exit 1; }
    go vet ./...
    go test -count=1 ./... | grep -v '^ok' && exit 1 || [ "${PIPESTATUS[0]}" = 0 ]
fi

if command -v helm >/dev/null; then
    helm lint --quiet --strict chart
    helm lint --quiet --strict chart --set storageClass.create=true,storageClass.server=tcp://server:7447/data
    helm lint --quiet --strict chart --set snapshots.enabled=true
    if [ "$(rendered)" != "$(cat "$manifests")" ]; then
        echo "$manifests is not of the chart: scripts/test-csi.sh --write"
        exit 1
    fi
else
    echo "SKIPPED: the chart is linted by helm"
fi
venv=${XDG_CACHE_HOME:-$HOME/.cache}/ferrite/python
if { [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; } >/dev/null 2>&1 &&
    { [ -x "$venv/bin/kubernetes-validate" ] ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0; }; then
    examples=$scratch/examples.yaml
    # Those of the page, one document after the other.
    sed -n '/^```yaml$/,/^```$/{/^```yaml$/d; s/^```$/---/; p}' "$root/docs/kubernetes.md" >"$examples"
    "$venv/bin/kubernetes-validate" --quiet --strict -k "$kubernetes" "$manifests" "$examples"
else
    echo "SKIPPED: manifests are checked by the wheel kubernetes-validate"
fi
