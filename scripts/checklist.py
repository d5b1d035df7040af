"""What has to be true before a version is released. `scripts/release ready` prints it, a line for each check."""

import datetime
import json
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib

BRANCH = "main"
# The crates for a registry, in the order in which they have to be there.
CRATES = ("epicepoch-wire", "epicepoch-certs", "epicepoch-client")
# What a package of a crate may contain.
PACKED = re.compile(
    r"src/[a-z0-9_/]+\.rs|proto/[a-z0-9_/]+\.(proto|binpb)|README\.md|LICENSE|Cargo\.(toml|toml\.orig|lock)|"
    r"\.cargo_vcs_info\.json"
)
NEEDED = {"src/lib.rs", "README.md", "LICENSE"}
PACKED_MAX = 60
# The fields of a manifest that a registry shows.
FIELDS = ("description", "license", "repository", "rust-version", "keywords", "categories")
GO, GO_TAG = "clients/go", "clients/go/v"
# Texts of pages that are wrong as soon as a version is tagged or published.
UNRELEASED = (
    "no version is tagged", "crates.io does not have it yet", "is in no registry", "no client is in a registry",
    "there is no download yet", "no key is published yet",
)
# Time limits, seconds.
GIT_SECONDS, BUILD_SECONDS = 60, 3600
USE = """package main

import (
	"context"
	"fmt"

	epicepoch "{module}"
)

func main() {{
	client, err := epicepoch.Dial(context.Background(), []string{{"localhost:8881"}})
	if err != nil {{
		fmt.Println(err)
		return
	}}
	defer client.Close()
	fmt.Println(client.Timestamp(context.Background()))
}}
"""


class Wrong(Exception):
    """A check has failed. The text says what is wrong, and what to do."""


def need(is_so, text):
    """Fails the check unless something is so."""
    if not is_so:
        raise Wrong(text)


def run(*command, cwd, seconds=GIT_SECONDS, **more):
    """Runs a command, and returns what it prints."""
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, "text": True}
    try:
        done = subprocess.run(command, cwd=cwd, check=False, timeout=seconds, **out, **more)
    except FileNotFoundError as error:
        raise Wrong(f"{command[0]} is missing: install it") from error
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"{' '.join(command)}: not finished within {seconds} s") from error
    lines = done.stdout.strip().splitlines()
    need(done.returncode == 0, "\n    ".join([f"{' '.join(command)}: exit code {done.returncode}", *lines[-15:]]))
    return done.stdout


class Checklist:
    """The checks of one repository. Each is a function that returns what was found, or raises `Wrong`."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.version = self.toml("Cargo.toml")["workspace"]["package"]["version"]

    def text(self, path):
        """The text of a file."""
        return (self.root / path).read_text()

    def toml(self, path):
        """The content of a TOML file."""
        return tomllib.loads(self.text(path))

    def git(self, *words):
        """Runs git, and returns what it prints."""
        return run("git", *words, cwd=self.root)

    def files(self, *patterns):
        """The committed files that match one of the patterns."""
        return self.git("ls-files", "--", *patterns).split()

    def tree(self):
        """Nothing is uncommitted."""
        changed = self.git("status", "--porcelain").splitlines()
        need(not changed, f"{len(changed)} files are not committed, such as {(changed or [''])[0]}: commit or remove them")
        return "nothing is uncommitted"

    def branch(self):
        """The commit is that of the main branch, here and in each repository that this one knows."""
        name = self.git("rev-parse", "--abbrev-ref", "HEAD").strip()
        need(name == BRANCH, f"this is {name}: git switch {BRANCH}")
        head, remotes = self.git("rev-parse", "HEAD").strip(), self.git("remote").split()
        for remote in remotes:
            found = self.git("ls-remote", "--heads", remote, f"refs/heads/{BRANCH}").split()
            need(found[:1] == [head], f"{BRANCH} of {remote} is {(found or ['missing'])[0][:12]}, not {head[:12]}: "
                                      "pull or push first")
        return f"this is {name}" + (f", as in {', '.join(remotes)}" if remotes else "; no other repository is known")

    def versions(self):
        """Each place that names the version, with what it says."""
        found = [("clients/python/pyproject.toml", self.toml("clients/python/pyproject.toml")["project"]["version"])]
        for crate in CRATES:
            said = self.toml("Cargo.toml")["workspace"]["dependencies"][crate].get("version", "nothing")
            found.append((f"Cargo.toml, {crate}", said.removeprefix("=") if said.startswith("=") else f"{said}, not ="))
        for package in self.toml("Cargo.lock")["package"]:
            if package["name"].startswith("epicepoch") and "source" not in package:
                found.append((f"Cargo.lock, {package['name']}", package["version"]))
        package, lock = (json.loads(self.text(f"clients/typescript/{name}.json")) for name in ("package", "package-lock"))
        found += [("clients/typescript/package.json", package["version"]),
                  ("clients/typescript/package-lock.json", lock["version"]),
                  ("clients/typescript/package-lock.json", lock["packages"][""]["version"])]
        patterns = {
            "*/__init__.py": r'^__version__ = "([^"]+)"',
            # In a Maven file, the first version is that of the project or of its parent.
            "*/pom.xml": r"<version>([^<]+)</version>",
            "deploy/*.yaml": r"epicepoch[-_a-z/]*[-@:]v?([0-9]+\.[0-9]+\.[0-9]+)\b",
            "*/Chart.yaml": r"^(?:appVersion|version): *\"?([^\"\s]+)",
            "*.md": r"epicepoch[-_a-z/]*[-@:]v?([0-9]+\.[0-9]+\.[0-9]+)\b|"
                    r"epicepoch, tag: ([0-9.]+)|"
                    r"tag = \"v([0-9.]+)\"|--branch v([0-9.]+)|clients/go@v([0-9.]+)",
        }
        for pattern, expression in patterns.items():
            for path in self.files(pattern):
                if path == "CHANGELOG.md" or path.startswith("docs/decisions/"):
                    continue
                names = re.finditer(expression, self.text(path), re.M)
                said = ["".join(filter(None, name.groups())) for name in names]
                found += [(path, text) for text in (said[:1] if path.endswith("pom.xml") else said)]
        return found

    def version_agrees(self):
        """All places name the same version."""
        found = self.versions()
        wrong = [f"{place} says {said}" for place, said in found if said != self.version]
        need(not wrong, f"Cargo.toml says {self.version}, but " + "; ".join(wrong))
        short = ".".join(self.version.split(".")[:2])
        page = self.text("crates/client/README.md")
        need(f'epicepoch-client = "{short}"' in page, f'crates/client/README.md does not say epicepoch-client = "{short}"')
        return f"{self.version} in {len(found) + 2} places"

    def changelog(self):
        """The changelog has a section with a date, and nothing waits for a version."""
        heads = list(re.finditer(r"^## \[([^\]]+)\](.*)$", self.text("CHANGELOG.md"), re.M))
        ends = [head.start() for head in heads[1:]] + [len(self.text("CHANGELOG.md"))]
        sections = {head[1]: (head[2], self.text("CHANGELOG.md")[head.end():end]) for head, end in zip(heads, ends)}
        need(self.version in sections, f"CHANGELOG.md has no section ## [{self.version}] - YYYY-MM-DD: write it")
        waiting = sections.get("Unreleased", ("", ""))[1].strip()
        need(not waiting, f"CHANGELOG.md has text in [Unreleased]: move it to [{self.version}]")
        rest, section = sections[self.version]
        need(section.strip(), f"the section [{self.version}] of CHANGELOG.md is empty")
        date = rest.strip().removeprefix("- ").strip()
        try:
            is_over = datetime.date.fromisoformat(date) <= datetime.date.today()
        except ValueError as error:
            raise Wrong(f"the section [{self.version}] of CHANGELOG.md has no date: - YYYY-MM-DD") from error
        need(is_over, f"the date {date} of [{self.version}] in CHANGELOG.md is in the future")
        return f"[{self.version}] of {date}"

    def pages(self):
        """No page says that there is no version."""
        wrong = [f"{path} says {text!r}" for path in self.files("*.md") for text in UNRELEASED
                 if text.lower() in " ".join(self.text(path).split()).lower()]
        need(not wrong, "; ".join(wrong) + ": say how to get this version")
        return "no page says that there is no version"

    def tags(self):
        """The tags do not exist, neither here nor in another repository that this one knows."""
        names = [f"v{self.version}", f"{GO_TAG}{self.version}"]
        found = {"this repository": self.git("tag", "--list").split()}
        for remote in self.git("remote").split():
            lines = self.git("ls-remote", "--tags", "--refs", remote).splitlines()
            found[remote] = [line.split("refs/tags/")[-1] for line in lines]
        wrong = [f"{name} exists in {place}" for place, tags in found.items() for name in names if name in tags]
        need(not wrong, "; ".join(wrong) + ": a version is never tagged twice, so take the next one")
        return " and ".join(names) + " are free"

    def ci(self):
        """All checks have succeeded for this commit."""
        passed = self.root / "target/xtask/ci.passed"
        head = self.git("rev-parse", "HEAD").strip()
        need(passed.exists() and passed.read_text().strip() == head,
             "cargo xtask ci has not succeeded here for this commit: run it; if it has elsewhere, say --ci-elsewhere")
        return f"cargo xtask ci has succeeded for {head[:12]}"

    def crate_flags(self):
        """Only the crates of the clients may be published."""
        free, own = [], self.toml("Cargo.toml")["workspace"]["package"]
        need(own.get("publish") is False, "Cargo.toml: [workspace.package] needs publish = false")
        for path in self.files("*Cargo.toml"):
            package = self.toml(path).get("package")
            if package and package.get("publish") not in (False, {"workspace": True}):
                free.append(package["name"])
                missing = [field for field in FIELDS if field not in package]
                need(not missing, f"{path} lacks {', '.join(missing)}")
        wrong = sorted(set(free) ^ set(CRATES))
        need(not wrong, f"{', '.join(wrong)}: only {', '.join(CRATES)} are for a registry; others have publish = false")
        return f"only {', '.join(CRATES)} can be published"

    def crate_files(self):
        """The packages contain the sources, the page and the licence, and nothing else."""
        count = 0
        for crate in CRATES:
            command = ["cargo", "package", "--list", "--allow-dirty", "--locked", "--quiet", "-p", crate]
            names = run(*command, cwd=self.root, seconds=BUILD_SECONDS).split()
            wrong = [name for name in names if not PACKED.fullmatch(name)] + sorted(NEEDED - set(names))
            need(not wrong, f"{crate}: {', '.join(wrong)}: see include in its Cargo.toml")
            need(len(names) <= PACKED_MAX, f"{crate}: {len(names)} files are more than {PACKED_MAX}")
            count += len(names)
        return f"{count} files in {len(CRATES)} packages"

    def crates(self):
        """The packages build alone. Cargo takes those that no registry has from a directory."""
        chosen = [word for crate in CRATES for word in ("-p", crate)]
        said = run("cargo", "publish", "--dry-run", "--allow-dirty", "--locked", *chosen, cwd=self.root, seconds=BUILD_SECONDS)
        done = ("is not included in the published package", "aborting upload due to dry run")
        wrong = [line for line in said.splitlines() if line.startswith("warning:") and not line.endswith(done)]
        need(not wrong, "; ".join(wrong))
        return "cargo publish --dry-run has no complaint"

    def go_path(self):
        """The path of the Go module is that of its tags. Returns the path."""
        lines = self.text(f"{GO}/go.mod").splitlines()
        module = next(line.removeprefix("module ") for line in lines if line.startswith("module "))
        major = int(self.version.split(".")[0])
        end = f"/{GO}" + (f"/v{major}" if major >= 2 else "")
        need(module.endswith(end), f"{GO}/go.mod: the module {module} of version {self.version} has to end in {end}")
        need(not any(line.startswith("replace") for line in lines),
             f"{GO}/go.mod: remove replace, which a program that depends on the module does not see")
        return module

    def go(self):
        """A new module gets the Go client by its tag, from a copy of this repository, and builds with it."""
        module = self.go_path()
        run("go", "vet", "./...", cwd=self.root / GO, seconds=BUILD_SECONDS)
        tag, (server, owner, name) = f"{GO_TAG}{self.version}", module.split("/")[:3]
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            copy, use = work / "copy.git", work / "use"
            run("git", "clone", "--quiet", "--bare", str(self.root), str(copy), cwd=work)
            run("git", "tag", "--force", tag, self.git("rev-parse", "HEAD").strip(), cwd=copy)
            use.mkdir()
            (use / "main.go").write_text(USE.format(module=module))
            # Go asks the address in the module's path. Git reads the copy instead.
            env = os.environ | {
                "GOPROXY": "direct", "GOSUMDB": "off", "GOMODCACHE": str(work / "modules"), "GOFLAGS": "-modcacherw",
                "GOWORK": "off", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{copy}.insteadOf",
                "GIT_CONFIG_VALUE_0": f"https://{server}/{owner}/{name}",
            }
            go = lambda *words: run("go", *words, cwd=use, seconds=BUILD_SECONDS, env=env)
            go("mod", "init", "example.org/use")
            go("get", f"{module}@v{self.version}")
            go("vet", "./...")
            go("build", "./...")
            said = go("list", "-m", module).strip()
        need(said == f"{module} v{self.version}", f"go list -m says {said}")
        return f"a new module builds with {said}, found by the tag {tag}"

    def by_hand(self):
        """What a person does after all checks, in this order."""
        tag, go_tag = f"v{self.version}", f"{GO_TAG}{self.version}"
        head = "By hand, in this order:"
        if ".invalid" in self.text("deploy/debian/control"):
            head += "\n 0. deploy/debian/control names no real maintainer: put in an address that answers, and begin again"
        return f"""{head}
 1. scripts/release build DIR                   the archives and the package
    scripts/release image DIR                   the image
    scripts/packages DIR && scripts/containers DIR
    scripts/release sign DIR KEY                signs all files; so the image comes first
 2. git tag -s {tag} -m "EpicEpoch {self.version}"
    git tag -s {go_tag} -m "EpicEpoch for Go {self.version}"
    git push REMOTE {tag} {go_tag}      a tag never moves: Go's proxies keep what they saw first
 3. cargo publish --locked {' '.join('-p ' + crate for crate in CRATES)}
    in this order, because each needs the ones before it; a version cannot be published twice
 4. podman load --input DIR/epicepoch-{self.version}-x86_64-image.tar
    podman push localhost/epicepoch:{self.version} REGISTRY/epicepoch:{self.version}
    helm package deploy/chart/epicepoch && helm push epicepoch-{self.version}.tgz oci://REGISTRY/charts
 5. Put the files of DIR beside the tag. Announce it only now, because the pages of the tag say that all this is there.
    Say in the announcement what CHANGELOG.md calls breaking."""


def crates(root, lists_only):
    """The check of the crates alone. Returns what was found."""
    checklist = Checklist(root)
    found = [checklist.crate_flags(), checklist.crate_files()]
    return "\n".join(found if lists_only else [*found, checklist.crates()])


def ready(root, given, advisories, reproducible):
    """Prints each check and its result. Returns whether all have succeeded."""
    checklist = Checklist(root)
    quick = [
        ("tree", checklist.tree), ("branch", checklist.branch), ("version", checklist.version_agrees),
        ("changelog", checklist.changelog), ("pages", checklist.pages), ("tags", checklist.tags),
        ("ci", None if given.ci_elsewhere else checklist.ci), ("crates", checklist.crate_flags),
        ("go path", checklist.go_path),
    ]
    slow = [
        ("dependencies", advisories), ("files", checklist.crate_files), ("publish", checklist.crates),
        ("go tag", checklist.go), ("reproducible", reproducible if given.reproducible else None),
    ]
    failed = []
    for name, check in quick + [(name, None if given.quick else check) for name, check in slow]:
        try:
            print(f"{'left out' if check is None else 'ok':9}{name:13}{check() if check else ''}".rstrip(), flush=True)
        except (Wrong, OSError, KeyError, StopIteration, ValueError) as error:
            # Other errors than ours: a file that the check reads is missing, or has another form.
            failed.append(name)
            text = error if isinstance(error, Wrong) else f"a file is not as expected: {error!r}"
            print(f"{'FAILED':9}{name:13}{text}", flush=True)
    print(f"\n{checklist.by_hand()}" if not failed else f"\nNot ready: {', '.join(failed)}")
    return not failed
