package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"epicepoch/chart/render"
)

// kubectl stands for kubectl and helm in commands of the page: it writes down its arguments, and the names of the files
// that it would put into a secret.
const kubectl = `#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
for word; do
    case $word in --from-file=*) ls "${word#--from-file=}" >>"$CALLS" ;; esac
done
`

// TestTheFirstCommandsOfThePage runs those that make certificates and values, up to the last renewal.
func TestTheFirstCommandsOfThePage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(render.Root(), "docs/operations/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	directory := t.TempDir()
	write(t, filepath.Join(directory, "bin/kubectl"), kubectl)
	write(t, filepath.Join(directory, "bin/helm"), kubectl)
	for _, name := range []string{"kubectl", "helm"} {
		if err := os.Chmod(filepath.Join(directory, "bin", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program(t), filepath.Join(directory, "bin/epicepoch")); err != nil {
		t.Fatal(err)
	}
	// The page is for a checkout. What it makes must have names that nothing there has.
	tracked, err := exec.Command("git", "-C", render.Root(), "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(tracked)) {
		if top, _, isBelow := strings.Cut(path, "/"); isBelow {
			if err := os.MkdirAll(filepath.Join(directory, top), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	commands := strings.Join(append(blocks(page, "## Install"), blocks(page, "## Certificates")...), "\n")
	if strings.Count(commands, "epicepoch certs") < 4 {
		t.Fatalf("the page makes and renews no certificates: %s", commands)
	}
	command := exec.Command("sh", "-eu", "-c", commands)
	calls := filepath.Join(directory, "calls")
	command.Dir = directory
	command.Env = []string{"PATH=" + directory + "/bin:" + os.Getenv("PATH"), "CALLS=" + calls}
	if said, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	said, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(said), "\n")
	for _, name := range strings.Fields("ca.pem node-1.pem node-3.key node-4.pem node-5.key clients operators") {
		if !slices.Contains(lines, name) {
			t.Errorf("no secret has %s: %s", name, said)
		}
	}
	if strings.Contains(string(said), "ca.key") {
		t.Errorf("a secret has the key of the authority: %s", said)
	}
	values, err := os.ReadFile(filepath.Join(directory, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := render.Chart(string(values)); err != nil {
		t.Error(err)
	}
	made := []string{"authority/ca.key", "certs/node-1.key", "tokens/operators", "values.yaml"}
	for _, path := range made {
		if _, err := os.Stat(filepath.Join(directory, path)); err != nil {
			t.Error(err)
		}
	}
	ignored, _ := exec.Command("git", append([]string{"-C", render.Root(), "check-ignore"}, made...)...).Output()
	if lines := strings.Fields(string(ignored)); !slices.Equal(lines, made) {
		t.Errorf("git ignores only %v", lines)
	}
}

// TestOnlyTheFirstCommandSetsValues: a value that a later command sets is lost with the next one.
func TestOnlyTheFirstCommandSetsValues(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(render.Root(), "docs/operations/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := strings.ReplaceAll(strings.Join(blocks(string(text), ""), "\n"), "\\\n", " ")
	helm, founding := 0, 0
	for _, line := range strings.Split(commands, "\n") {
		if !regexp.MustCompile(`^helm (install|upgrade)`).MatchString(line) {
			continue
		}
		helm++
		if !strings.Contains(line, " --values values.yaml") {
			t.Errorf("without values: %s", line)
		}
		if sets := regexp.MustCompile(`--set\S* \S+`).FindAllString(line, -1); len(sets) > 0 {
			founding++
			if !strings.HasPrefix(line, "helm install") || sets[0] != "--set bootstrap=true" {
				t.Errorf("sets values: %s", line)
			}
		}
	}
	if helm < 5 || founding != 2 {
		t.Errorf("%d commands of helm, %d of them found a cluster", helm, founding)
	}
}

// blocks are the commands of a section, or those of the whole page.
func blocks(page, head string) []string {
	if head != "" {
		_, page, _ = strings.Cut(page, head+"\n")
		page, _, _ = strings.Cut(page, "\n## ")
	}
	var found []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1) {
		found = append(found, block[1])
	}
	return found
}
