package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"

	"epicepoch/chart/render"
)

const (
	// Addresses of the pods are 127.0.0.11 and so on.
	address  = "127.0.0.1"
	nodesMax = 7
	// Longest wait for anything.
	patience = 60 * time.Second
)

// pods runs real nodes with the variables that the chart gives to its pods. The names of pods and services are replaced
// by addresses of this machine, and the volumes by directories.
type pods struct {
	t       *testing.T
	files   string
	ports   map[string]string
	running map[int]*exec.Cmd
	last    string
	// The pod in which commands run, and to which services lead.
	at int
}

// TestTheLifeOfACluster does with real nodes what docs/operations/kubernetes.md does with pods: it founds a cluster,
// unsets `bootstrap`, replaces a node that lost its volume, makes a backup, grows to five nodes, shrinks to three, and
// restores a backup into empty volumes.
func TestTheLifeOfACluster(t *testing.T) {
	pods := newPods(t)
	founding, later := []string{render.Plain, render.Secured, render.Founding}, []string{render.Plain, render.Secured}
	for id := 1; id <= 3; id++ {
		pods.start(id, founding)
	}
	pods.serves()

	// `helm upgrade` without bootstrap restarts the pods one by one, the last first.
	for id := 3; id >= 1; id-- {
		pods.stop(id)
		pods.start(id, later)
		pods.isReady(id)
	}
	pods.serves()

	// The volume of node 2 is lost. Its pod founds nothing, and joins nothing.
	pods.stop(2)
	if err := os.RemoveAll(pods.volume(2)); err != nil {
		t.Fatal(err)
	}
	pods.start(2, later)
	if code := pods.ended(2); code != 4 {
		t.Errorf("a pod without its volume ends with %d", code)
	}
	pods.serves()

	// The nodes 4 and 5 take the places of 2 and 1.
	pods.add(4, later)
	pods.must("member", "promote", "4", "--remove", "2", "--wait", "--timeout", "30s")
	pods.add(5, later)
	pods.must("leader", "transfer", "--to", "4")
	pods.must("member", "promote", "5", "--remove", "1", "--wait", "--timeout", "30s")
	if code := pods.ended(1); code != 3 {
		t.Errorf("a removed node ends with %d", code)
	}
	pods.areMembers(3, 4, 5)
	pods.backsUp()
	pods.areProbed()

	// It grows to five, and the two oldest leave.
	for id := 6; id <= 7; id++ {
		pods.add(id, later)
		pods.must("member", "promote", fmt.Sprint(id), "--wait", "--timeout", "30s")
	}
	pods.areMembers(3, 4, 5, 6, 7)
	pods.must("leader", "transfer", "--to", "7")
	pods.at = 5
	pods.must("member", "remove", "3")
	pods.must("member", "remove", "4")
	for id := 3; id <= 4; id++ {
		if code := pods.ended(id); code != 3 {
			t.Errorf("removed node %d ends with %d", id, code)
		}
	}
	pods.areMembers(5, 6, 7)
	pods.restores(5, 6, 7)
}

func newPods(t *testing.T) *pods {
	t.Helper()
	hosts := func(id int) string { return fmt.Sprintf("%s%d", address, id) }
	all := &pods{t: t, files: certificates(t, hosts), ports: map[string]string{}, running: map[int]*exec.Cmd{}, at: 3}
	for _, port := range []string{"8080", "60001"} {
		all.ports[port] = freePort(t)
	}
	t.Cleanup(func() {
		for id := range all.running {
			all.stop(id)
		}
	})
	return all
}

// variables are those of a pod, with names and ports of this machine.
func (all *pods) variables(id int, sets []string) []string {
	set := decoded[apps.StatefulSet](all.t, rendered(all.t, sets...), "StatefulSet", "epicepoch")
	given := expanded(set.Spec.Template.Spec.Containers[0].Env, id)
	given["HTTP_BIND"], given["RAFT_BIND"] = fmt.Sprintf("%s%d", address, id), fmt.Sprintf("%s%d", address, id)
	replace := []string{"/etc/epicepoch/", all.files + "/", "/var/lib/epicepoch/", all.files + "/data/"}
	for other := 1; other <= nodesMax; other++ {
		replace = append(replace, fmt.Sprintf("epicepoch-%d.%s", other, render.Nodes), fmt.Sprintf("%s%d", address, other))
	}
	// A service leads to pods that are ready, and so not to a pod that waits.
	member := all.at
	if member == id {
		member++
	}
	service := func(name string, id int) {
		name = fmt.Sprintf("%s.%s.svc.cluster.local", name, render.Namespace)
		replace = append(replace, name, fmt.Sprintf("%s%d", address, id))
	}
	service("epicepoch-join", member)
	service("epicepoch", all.at)
	replace = append(replace, "60001", all.ports["60001"], "8080", all.ports["8080"])
	replacer := strings.NewReplacer(replace...)
	var variables []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		variables = append(variables, name+"="+replacer.Replace(given[name]))
	}
	return variables
}

func (all *pods) start(id int, sets []string) {
	all.t.Helper()
	command := exec.Command(program(all.t), "serve")
	command.Env = all.variables(id, sets)
	command.Dir = all.files
	log, err := os.OpenFile(all.log(id), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		all.t.Fatal(err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		all.t.Fatal(err)
	}
	all.running[id] = command
}

func (all *pods) log(id int) string { return filepath.Join(all.files, fmt.Sprintf("%d.log", id)) }
func (all *pods) volume(id int) string {
	return filepath.Join(all.files, "data", fmt.Sprintf("node-%d", id))
}

// stop ends a pod as Kubernetes does.
func (all *pods) stop(id int) {
	command := all.running[id]
	delete(all.running, id)
	if command.ProcessState != nil || command.Process.Signal(syscall.SIGTERM) != nil {
		return
	}
	killed := time.AfterFunc(15*time.Second, func() { _ = command.Process.Kill() })
	defer killed.Stop()
	if err := command.Wait(); err != nil {
		all.t.Errorf("node %d: %v", id, err)
	}
}

// ended waits until the process of a pod ends by itself, and returns its exit code.
func (all *pods) ended(id int) int {
	command := all.running[id]
	killed := time.AfterFunc(patience, func() { _ = command.Process.Kill() })
	defer killed.Stop()
	_ = command.Wait()
	delete(all.running, id)
	return command.ProcessState.ExitCode()
}

// tool runs a command as `kubectl exec` does.
func (all *pods) tool(words ...string) (bool, string) {
	command := exec.Command(program(all.t), words...)
	command.Env = all.variables(all.at, []string{render.Plain, render.Secured})
	text, err := command.CombinedOutput()
	return err == nil, strings.TrimSpace(string(text))
}

func (all *pods) must(words ...string) string {
	all.t.Helper()
	is, text := all.tool(words...)
	if !is {
		all.t.Fatalf("%v: %s", words, text)
	}
	return text
}

func (all *pods) eventually(what string, is func() (bool, string)) string {
	all.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		done, text := is()
		if done {
			return text
		}
		if time.Now().After(end) {
			var logs strings.Builder
			for id := 1; id <= nodesMax; id++ {
				log, _ := os.ReadFile(all.log(id))
				logs.Write(log[max(0, len(log)-1500):])
			}
			all.t.Fatalf("not within %v: %s: %s\n%s", patience, what, text, logs.String())
		}
	}
}

// isReady waits until the readiness probe of a pod succeeds.
func (all *pods) isReady(id int) {
	all.t.Helper()
	url := fmt.Sprintf("https://%s%d:%s/ready", address, id, all.ports["8080"])
	all.eventually(url, func() (bool, string) {
		text, err := exec.Command("curl", "-fsS", "-m", "2", "--cacert", all.files+"/tls/ca.pem", url).CombinedOutput()
		return err == nil, string(text)
	})
}

// backsUp runs the command of the CronJob.
func (all *pods) backsUp() {
	all.t.Helper()
	more := "{ firstNode: 3, backup: { enabled: true, existingClaim: backups } }"
	objects := rendered(all.t, render.Plain, render.Secured, more)
	job := decoded[batch.CronJob](all.t, objects, "CronJob", "epicepoch-backup")
	container := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	if name := container.Env[0]; name.Name != "POD_NAME" || name.ValueFrom.FieldRef.FieldPath != "metadata.name" {
		all.t.Errorf("the name of a backup comes from %v", name)
	}
	path := filepath.Join(all.files, "epicepoch-backup-1.backup")
	words := []string{"/backups/", all.files + "/", "$(POD_NAME)", "epicepoch-backup-1"}
	for id := 3; id <= 5; id++ {
		words = append(words, fmt.Sprintf("epicepoch-%d.%s:8080", id, render.Nodes))
		words = append(words, fmt.Sprintf("%s%d:%s", address, id, all.ports["8080"]))
	}
	command := strings.Join(container.Args, "\n")
	replaced := strings.NewReplacer(words...).Replace(command)
	if strings.Count(replaced, address) != 3 {
		all.t.Errorf("the backup does not ask three nodes: %s", command)
	}
	all.must(strings.Split(replaced, "\n")...)
	all.must("backup", "--check", path)
}

// areProbed runs the probe with the variables of deploy/epicepoch-probe.service for a cluster with TLS and tokens.
func (all *pods) areProbed() {
	all.t.Helper()
	unit, err := os.ReadFile(filepath.Join(render.Root(), "deploy/epicepoch-probe.service"))
	if err != nil {
		all.t.Fatal(err)
	}
	credentials := all.t.TempDir()
	command := exec.Command(program(all.t), "probe", "--metrics-bind", address+":0", "--output", "json")
	for name, path := range map[string]string{"ca.pem": "tls/ca.pem", "token": "clients/clients"} {
		if !strings.Contains(string(unit), "\n# LoadCredential="+name+":") {
			all.t.Errorf("the unit of the probe has no %s", name)
		}
		text, err := os.ReadFile(filepath.Join(all.files, path))
		if err != nil {
			all.t.Fatal(err)
		}
		write(all.t, filepath.Join(credentials, name), string(text))
	}
	command.Env = []string{fmt.Sprintf("EPICEPOCH_ADDRS=%s%d:%s", address, all.at, all.ports["8080"])}
	_, variables, _ := strings.Cut(string(unit), "\n# Environment=")
	variables, _, _ = strings.Cut(variables, "\n")
	command.Env = append(command.Env, strings.Fields(strings.ReplaceAll(variables, "%d", credentials))...)
	ended := time.AfterFunc(2*time.Second, func() { _ = command.Process.Signal(syscall.SIGTERM) })
	defer ended.Stop()
	text, err := command.Output()
	var totals map[string]any
	if json.Unmarshal(text, &totals) != nil || err != nil {
		all.t.Fatalf("%v: %s", err, text)
	}
	if fmt.Sprint(totals["answers"]) == "0" || totals["answers"] == nil {
		all.t.Errorf("the probe of the unit has no answer: %s", text)
	}
}

// restores loses all pods and volumes, and founds a new history with the same nodes from a backup of one node.
func (all *pods) restores(ids ...int) {
	all.t.Helper()
	path := filepath.Join(all.files, "restore/epicepoch.backup")
	local := fmt.Sprintf("%s%d:%s", address, all.at, all.ports["8080"])
	command := exec.Command(program(all.t), "backup", "--addr", local, "--out", "-")
	command.Env = all.variables(all.at, []string{render.Plain, render.Secured})
	text, err := command.Output()
	// As on the page, only one pod is asked. The command writes the backup, and warns.
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(exit.Stderr), "may miss the last changes") {
		all.t.Fatalf("a backup of one pod: %v", err)
	}
	write(all.t, path, string(text))
	for _, id := range ids {
		all.stop(id)
		if err := os.RemoveAll(all.volume(id)); err != nil {
			all.t.Fatal(err)
		}
	}
	nodes := fmt.Sprintf("{ firstNode: %d, replicas: %d }", ids[0], len(ids))
	for _, id := range ids {
		all.start(id, []string{render.Plain, render.Secured, render.Restore, nodes})
	}
	all.serves()
	for at := len(ids) - 1; at >= 0; at-- {
		all.stop(ids[at])
		all.start(ids[at], []string{render.Plain, render.Secured, nodes})
		all.isReady(ids[at])
	}
	all.areMembers(ids...)
}

// add starts a pod and lets it join.
func (all *pods) add(id int, sets []string) {
	all.t.Helper()
	all.start(id, sets)
	all.eventually(fmt.Sprintf("node %d waits", id), func() (bool, string) {
		return all.tool("member", "add", fmt.Sprintf("%d=%s%d:%s", id, address, id, all.ports["60001"]))
	})
}

// areMembers checks that exactly these nodes are members, that their pods are ready, and that they serve.
func (all *pods) areMembers(ids ...int) {
	all.t.Helper()
	for _, id := range ids {
		all.isReady(id)
	}
	list := all.must("member", "list", "--output", "json")
	for id := 1; id <= nodesMax; id++ {
		is := strings.Contains(list, fmt.Sprintf(`"%s%d:%s"`, address, id, all.ports["60001"]))
		if is != slices.Contains(ids, id) {
			all.t.Errorf("node %d is a member: %v: %s", id, is, list)
		}
	}
	all.serves()
}

// serves waits for a timestamp, which must be greater than the last one.
func (all *pods) serves() {
	all.t.Helper()
	text := all.eventually("the cluster serves", func() (bool, string) { return all.tool("get") })
	if len(text) != 32 || text <= all.last {
		all.t.Fatalf("%s after %s", text, all.last)
	}
	all.last = text
}
