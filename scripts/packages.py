#!/usr/bin/env python3
"""Packs the packages that are published, as `cargo publish` would, and checks what is in them. Uploads nothing.

    python3 scripts/packages.py             # what holds at any time; no package of the workspace hides tests
    python3 scripts/packages.py --release   # what a release needs besides: see RELEASING.md

Prints the packages in the order in which they must be published.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = re.compile(r"(build|cpp|guide|migration|src)/.+|build\.rs|Cargo\.(toml|toml\.orig|lock)|LICENSE-(MIT|APACHE)|README\.md|\.cargo_vcs_info\.json")
NEEDED = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/"]
FILE_LIMIT, PACKAGE_LIMIT = 256 << 10, 2 << 20  # bytes of a file, and of a package as it is uploaded; crates.io allows 10 MiB
FOLDER = ROOT / "target/packages"


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def in_order(packages):
    """Sorts packages so that each comes after those of them that it depends on. Cargo strips the versions of
    development dependencies that have none, so they do not count."""
    ordered = []
    while len(ordered) < len(packages):
        names = {package["name"] for package in packages if package not in ordered}
        ready = [package for package in packages if package["name"] in names and not any(
            dependency["name"] in names and dependency["kind"] != "dev" for dependency in package["dependencies"])]
        if not ready:
            sys.exit(f"packages: {', '.join(sorted(names))} depend on each other, so none of them can be published first")
        ordered += sorted(ready, key=lambda package: package["name"])
    return ordered


def manifest_mistakes(package, version, names):
    """Yields what is wrong in the manifest of a package."""
    if package["version"] != version:
        yield f"version {package['version']}: expected {version}, that of the workspace"
    for field in ["description", "license", "readme", "rust_version", "keywords", "categories"]:
        if not package[field]:
            yield f"`{field.replace('_', '-')}` is missing"
    if len(package["keywords"]) > 5 or len(package["categories"]) > 5:
        yield "crates.io allows 5 keywords and 5 categories"
    for dependency in package["dependencies"]:
        if dependency["name"] in names and dependency["req"] != f"={version}":
            yield f"the dependency on {dependency['name']} is `{dependency['req']}`: expected `={version}`, because they change together"


def content_mistakes(files):
    """Yields what is wrong with the files of a package: their sizes by name."""
    for name, size in files.items():
        if not ALLOWED.fullmatch(name):
            yield f"{name} is in the package: leave it out of `include`, or allow it in this script"
        if size > FILE_LIMIT:
            yield f"{name} has {size >> 10} KiB: a file may have at most {FILE_LIMIT >> 10} KiB"
    for needed in NEEDED:
        if not any(name.startswith(needed) for name in files):
            yield f"{needed} is not in the package: add it to `include`"


def hidden_tests(package):
    """Yields targets that are not built as tests, although they have some."""
    for target in package["targets"]:
        if {"lib", "bin", "proc-macro"} & set(target["kind"]):
            folder = pathlib.Path(target["src_path"]).parent
            code = "\n".join(path.read_text() for path in folder.rglob("*.rs"))
            if not target["test"] and "#[test]" in code:
                yield f"{target['name']} has tests that are never run: remove `test = false`"
            if "lib" in target["kind"] and not target["doctest"] and re.search(r"^ *//[/!] ```", code, re.MULTILINE):
                yield f"{target['name']} has examples that are never run: remove `doctest = false`"


def release_mistakes(packages, version):
    """Yields what a release needs besides."""
    for package in packages:
        if not package["repository"]:
            yield f"{package['name']}: `repository` is missing"
    changes = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD`"
    if not re.search(r'^trainer = "', (ROOT / "README.md").read_text(), re.MULTILINE):
        yield 'README.md does not depend on the published crate: write `trainer = "…"` in "A crate of hooks"'
    if changed := subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout:
        yield f"there are changes that are not committed:\n{changed.rstrip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="store_true", help="also check what only a release needs")
    arguments = parser.parse_args()
    metadata = json.loads(cargo("metadata", "--no-deps", "--format-version", "1"))
    packages = in_order([package for package in metadata["packages"] if package["publish"] != []])
    names = [package["name"] for package in packages]
    version = next(package["version"] for package in packages if package["name"] == "trainer")
    options = [option for name in names for option in ("-p", name)]
    cargo("package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir", str(FOLDER), *options)

    mistakes = []
    for package in packages:
        path = FOLDER / "package" / f"{package['name']}-{package['version']}.crate"
        with tarfile.open(path) as archive:
            files = {member.name.split("/", 1)[1]: member.size for member in archive.getmembers()}
        size = path.stat().st_size
        print(f"{package['name']:<18} {package['version']}  {len(files):>4} files  {size / 1024:>6.0f} KiB")
        found = [*manifest_mistakes(package, version, names), *content_mistakes(files)]
        if size > PACKAGE_LIMIT:
            found.append(f"{size >> 10} KiB: a package may have at most {PACKAGE_LIMIT >> 10} KiB")
        mistakes += [f"{package['name']}: {mistake}" for mistake in found]
    mistakes += [f"{package['name']}: {mistake}" for package in metadata["packages"] for mistake in hidden_tests(package)]
    if arguments.release:
        mistakes += release_mistakes(packages, version)
    for mistake in mistakes:
        print(f"packages: {mistake}", file=sys.stderr)
    sys.exit(1 if mistakes else 0)


main()
