package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chartutil"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"epicepoch/chart/render"
)

// TestEachVariantHasItsObjects and decodes them strictly: an unknown or doubled field is an error.
func TestEachVariantHasItsObjects(t *testing.T) {
	for name, sets := range render.Variants {
		objects := rendered(t, sets...)
		var kinds []string
		for _, object := range objects {
			if err := strict(object); err != nil {
				t.Errorf("%s: %s %s: %v", name, object.Kind, object.Name, err)
			}
			kinds = append(kinds, object.Kind)
		}
		slices.Sort(kinds)
		expected := []string{"PodDisruptionBudget", "Service", "Service", "Service", "StatefulSet"}
		text := strings.Join(sets, "\n")
		if strings.Contains(text, "monitoring: { enabled: true") {
			expected = append(expected, "CronJob", "PrometheusRule", "ServiceMonitor")
		}
		if strings.Contains(text, "source: certManager") {
			expected = append(expected, "Certificate")
		}
		slices.Sort(expected)
		if !slices.Equal(kinds, expected) {
			t.Errorf("%s: %v, expected %v", name, kinds, expected)
		}
	}
}

// TestStrictDecodingFindsMistakes plants mistakes that strict decoding must find.
func TestStrictDecodingFindsMistakes(t *testing.T) {
	for _, it := range []struct{ kind, old, new, says string }{
		{"StatefulSet", "replicas: 3", "replicaz: 3", `unknown field "replicaz"`},
		{"StatefulSet", "replicas: 3", `replicas: "3"`, "cannot unmarshal string"},
		{"StatefulSet", "replicas: 3", "replicas: 3\n  replicas: 3", "already set in map"},
		{"StatefulSet", "drop:", "dropp:", `unknown field "dropp"`},
		{"ServiceMonitor", "interval:", "intervall:", `unknown field "intervall"`},
		{"Certificate", "dnsNames:", "dnsName:", `unknown field "dnsName"`},
	} {
		objects := rendered(t, render.Plain, render.Secured, render.Full, "replicas: 3", render.CertManager)
		at := slices.IndexFunc(objects, func(object render.Object) bool { return object.Kind == it.kind })
		object := objects[at]
		changed := strings.Replace(object.YAML, it.old, it.new, 1)
		if changed == object.YAML {
			t.Fatalf("%s has no %q", it.kind, it.old)
		}
		err := strict(render.Object{Kind: it.kind, YAML: changed})
		if err == nil || !strings.Contains(err.Error(), it.says) {
			t.Errorf("%q in place of %q: %v", it.new, it.old, err)
		}
	}
}

// TestWrongValuesAreRefused with a message that names the value.
func TestWrongValuesAreRefused(t *testing.T) {
	for _, it := range []struct{ set, says string }{
		{"tls: { source: \"\" }", "at '/tls/source': value must be one of 'secret', 'certManager', 'none'"},
		{"image: { repository: \"\" }", "at '/image/repository': minLength"},
		{"replicas: 0", "at '/replicas': minimum: got 0, want 1"},
		{"replicas: 11", "at '/replicas': maximum: got 11, want 9"},
		{"replicas: \"3\"", "at '/replicas': got string, want integer"},
		{"replica: 3", "additional properties 'replica' not allowed"},
		{"firstNode: 0", "at '/firstNode': minimum"},
		{"cluster: A_b", "at '/cluster': 'A_b' does not match pattern"},
		{"settings: { ELECTION_TIMEOUT: \"1\" }", "additional properties 'ELECTION_TIMEOUT' not allowed"},
		{"settings: { NODE_ID: \"1\" }", "additional properties 'NODE_ID' not allowed"},
		{"settings: { MAX_N: 12 }", "at '/settings/MAX_N': got number, want string"},
		{"{ zones: true, settings: { LEADER_ZONES: \"a,\" } }", "at '/settings/LEADER_ZONES': 'a,' does not match pattern"},
		{"settings: { LEADER_ZONES: \"a,b\" }", "set zones: true with settings.LEADER_ZONES"},
		{"antiAffinity: soft", "at '/antiAffinity': value must be one of 'required', 'preferred'"},
		{"storage: { size: 1 gig }", "at '/storage/size': '1 gig' does not match pattern"},
		{"storage: { accessMode: ReadWriteMany }", "at '/storage/accessMode': value must be one of"},
		{"tls: { peers: off }", "at '/tls/peers'"},
		{"adminFrom: everywhere", "at '/adminFrom': 'everywhere' does not match pattern"},
		{"tls: { source: secret }", "set tls.secretName"},
		{"tls: { source: certManager, secretName: x }", "set tls.certManager.issuerName"},
		{"restore: { secretName: x }", "set bootstrap=true with restore.secretName"},
		{"{ bootstrap: true, firstNode: 4 }", "leave firstNode at 1 with bootstrap"},
		{"{ bootstrap: true, replicas: 4 }", "an odd number of replicas"},
		{"settings: { RESTORE_FLOOR: 1ms }", "unset settings.RESTORE_FLOOR without bootstrap"},
		{"{ monitoring: { enabled: true }, opsPlainFrom: loopback }", "set tokens.operators.secretName"},
		{"backup: { enabled: true }", "set backup.existingClaim"},
		{
			"{ monitoring: { enabled: true }, tokens: { operators: { secretName: x } } }",
			"set monitoring.tokenSecretName",
		},
		{
			"{ replicas: 5, tls: { source: certManager, secretName: x, certManager: { issuerName: x, nodesMax: 4 } } }",
			"raise tls.certManager.nodesMax",
		},
	} {
		_, err := render.Chart(render.Plain, it.set)
		if err == nil || !strings.Contains(err.Error(), it.says) {
			t.Errorf("%s: expected %q, got: %v", it.set, it.says, err)
		}
	}
	for _, set := range []string{
		"{ bootstrap: true, settings: { RESTORE_FLOOR: 1ms } }",
		"{ bootstrap: true, replicas: 4, firstNode: 2, restore: { secretName: x } }",
	} {
		if _, err := render.Chart(render.Plain, set); err != nil {
			t.Errorf("%s: %v", set, err)
		}
	}
	if _, err := render.Chart(); err == nil {
		t.Error("the default values do not say how nodes speak TLS, and are not refused")
	}
}

// TestAnUpgradeTakesNoNodeBack: neither the first nor the last node falls, and nobody founds a cluster again.
func TestAnUpgradeTakesNoNodeBack(t *testing.T) {
	running := "{ spec: { replicas: 3, ordinals: { start: 3 } }, status: { readyReplicas: 3 } }"
	dead := "{ spec: { replicas: 3, ordinals: { start: 1 } }, status: { replicas: 3 } }"
	patch := `kubectl --namespace oracle patch statefulset epicepoch --type merge --patch ` +
		`'{"spec":{"replicas":4,"ordinals":{"start":2}}}'`
	for _, it := range []struct{ existing, set, says string }{
		{running, "{ firstNode: 3, replicas: 3 }", ""},
		{running, "{ firstNode: 3, replicas: 5 }", ""},
		{running, "{ firstNode: 4, replicas: 2 }", ""},
		{running, "{ firstNode: 2, replicas: 4 }", "firstNode is 3 in the cluster"},
		{running, "{ firstNode: 2, replicas: 4 }", patch},
		{running, "replicas: 9", "firstNode is 3 in the cluster"},
		{running, "{ firstNode: 3, replicas: 2 }", "(firstNode + replicas - 1) is 5 in the cluster"},
		{running, "{ firstNode: 3, replicas: 1 }", "(firstNode + replicas - 1) is 5 in the cluster"},
		{running, "{ firstNode: 3, bootstrap: true, restore: { secretName: x } }", "unset bootstrap"},
		{dead, "bootstrap: true", ""},
		{dead, "replicas: 2", "(firstNode + replicas - 1) is 3 in the cluster"},
		{"{}", "bootstrap: true", ""},
	} {
		err := render.Upgrade(it.existing, 0, render.Plain, it.set)
		if it.says == "" && err != nil || it.says != "" && (err == nil || !strings.Contains(err.Error(), it.says)) {
			t.Errorf("%s to %s: expected %q, got: %v", it.existing, it.set, it.says, err)
		}
	}
}

// TestAnUpgradeEndsNoPodOfAMember: the pod of a removed node is not ready.
func TestAnUpgradeEndsNoPodOfAMember(t *testing.T) {
	running := "{ spec: { replicas: 5, ordinals: { start: 1 } }, status: { readyReplicas: 3 } }"
	for _, it := range []struct {
		ready int
		set   string
		says  string
	}{
		{0, "{ firstNode: 3, replicas: 3 }", ""},
		{2, "{ firstNode: 3, replicas: 3 }", "the pod epicepoch-1, which is ready: first \"member remove 1\""},
		{3, "{ firstNode: 2, replicas: 4 }", "the pod epicepoch-1, which is ready"},
		{5, "{ firstNode: 1000, replicas: 9 }", "the pod epicepoch-1, which is ready"},
		{5, "{ firstNode: 1, replicas: 5 }", ""},
	} {
		err := render.Upgrade(running, it.ready, render.Plain, it.set)
		if it.says == "" && err != nil || it.says != "" && (err == nil || !strings.Contains(err.Error(), it.says)) {
			t.Errorf("%d pods ready, %s: expected %q, got: %v", it.ready, it.set, it.says, err)
		}
	}
}

// TestAnUpgradeLetsNodesTalk: nodes of the old and the new values accept each other while the pods restart.
func TestAnUpgradeLetsNodesTalk(t *testing.T) {
	plain, accept, dial := "tls: { source: none }", "tls: { peers: accept }", "tls: { peers: dial }"
	for _, it := range []struct{ from, to, says string }{
		{plain, "", `PEER_TLS is "off" in the cluster, and would be "on"`},
		{"", plain, `PEER_TLS is "on" in the cluster, and would be "off"`},
		{accept, "", `PEER_TLS is "accept" in the cluster, and would be "on"`},
		{plain, accept, ""},
		{accept, dial, ""},
		{dial, "", ""},
		{"", dial, ""},
		{accept, plain, ""},
		{"", "", ""},
		{"", "cluster: other", `cluster is "epicepoch" in the cluster: it never changes`},
	} {
		objects := rendered(t, render.Plain, render.Secured, it.from)
		at := slices.IndexFunc(objects, func(object render.Object) bool { return object.Kind == "StatefulSet" })
		err := render.Upgrade(objects[at].YAML, 0, render.Plain, render.Secured, it.to)
		if it.says == "" && err != nil || it.says != "" && (err == nil || !strings.Contains(err.Error(), it.says)) {
			t.Errorf("%q to %q: expected %q, got: %v", it.from, it.to, it.says, err)
		}
	}
}

// TestOnlyAClosedPortEndsAPod: a node with CONNECTIONS_MAX connections closes further ones, also those of a probe.
func TestOnlyAClosedPortEndsAPod(t *testing.T) {
	for name, sets := range render.Variants {
		container := decoded[apps.StatefulSet](t, rendered(t, sets...), "StatefulSet", "epicepoch").Spec.Template.Spec.
			Containers[0]
		for _, probe := range []*core.Probe{container.StartupProbe, container.LivenessProbe} {
			if probe.TCPSocket == nil || probe.HTTPGet != nil {
				t.Errorf("%s: a probe that can end the pod asks the node", name)
			}
		}
	}
}

// TestThePodHasTimeToStop: Kubernetes kills it no sooner than docs/operations/deploy.md#shutdown says.
func TestThePodHasTimeToStop(t *testing.T) {
	for given, expected := range map[string]int64{"3000": 15, "9999": 15, "10001": 16, "60000": 65} {
		set := "settings: { SHUTDOWN_TIMEOUT_MS: \"" + given + "\" }"
		spec := decoded[apps.StatefulSet](t, rendered(t, render.Plain, set), "StatefulSet", "epicepoch").Spec
		if period := *spec.Template.Spec.TerminationGracePeriodSeconds; period < expected || period > expected+1 {
			t.Errorf("%s: %d s, expected %d", given, period, expected)
		}
	}
}

// TestConnectionsFitIntoTheMemory with the figures of docs/operations/deploy.md#memory-of-a-connection.
func TestConnectionsFitIntoTheMemory(t *testing.T) {
	container := decoded[apps.StatefulSet](t, rendered(t, render.Plain), "StatefulSet", "epicepoch").Spec.Template.Spec.
		Containers[0]
	variables := expanded(container.Env, 1)
	// The node without connections takes 20 MB to 33 MiB (docs/benchmarks.md).
	limit := container.Resources.Limits.Memory().Value() - 40<<20
	for variable, kib := range map[string]int64{
		"CONNECTIONS_MAX": 3 + 68 + 64, "ADDRESS_CONNECTIONS_MAX": 6 + 600 + 64,
	} {
		count, err := strconv.ParseInt(variables[variable], 10, 64)
		if err != nil || count < 1000 || count*kib<<10 > limit {
			t.Errorf("%s is %q: does not fit into %d MiB: %v", variable, variables[variable], limit>>20, err)
		}
	}
}

// TestCertManagerRenewsBeforeTheAlert fires for a certificate that expires soon.
func TestCertManagerRenewsBeforeTheAlert(t *testing.T) {
	objects := rendered(t, render.Variants["cert-manager"]...)
	spec := decoded[certmanager.Certificate](t, objects, "Certificate", "epicepoch").Spec
	alerts, err := os.ReadFile(filepath.Join(render.Root(), "deploy/prometheus/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`expiry_timestamp_seconds - time\(\) < ([0-9]+) \* 86400`).FindSubmatch(alerts)
	days, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	day := 24 * time.Hour
	if spec.RenewBefore == nil || spec.RenewBefore.Duration < time.Duration(days+7)*day ||
		spec.Duration.Duration < 2*spec.RenewBefore.Duration {
		t.Errorf("renewed %v before the end of %v; the alert fires %d days before", spec.RenewBefore, spec.Duration, days)
	}
}

// TestThePageNamesWhatTheChartCannotSet: each setting of the program is one of the chart, or on the page.
func TestThePageNamesWhatTheChartCannotSet(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(render.Root(), "docs/operations/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, listed, _ := strings.Cut(string(page), "**Not in the chart**")
	listed, _, _ = strings.Cut(listed, "\n- ")
	set := map[string]string{}
	for _, sets := range render.Variants {
		maps.Copy(set, expanded(decoded[apps.StatefulSet](t, rendered(t, sets...), "StatefulSet", "epicepoch").
			Spec.Template.Spec.Containers[0].Env, 1))
	}
	report, _ := check(t, certificates(t, pod), set)
	allowed := allowedSettings(t)
	for setting := range report.Settings {
		_, isSet := set[setting]
		_, isAllowed := allowed[setting]
		if isListed := strings.Contains(listed, "`"+setting+"`"); isListed == (isSet || isAllowed) {
			t.Errorf("%s: set or allowed by the chart: %v; on the page: %v", setting, isSet || isAllowed, isListed)
		}
	}
}

// TestSelectorsAndPortsFit checks what no API server checks: whether objects find each other.
func TestSelectorsAndPortsFit(t *testing.T) {
	for name, sets := range render.Variants {
		if err := fit(rendered(t, sets...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, it := range []struct{ kind, name, old, new, says string }{
		{"Service", "epicepoch-nodes", "component: node\n", "component: nod\n", "Service epicepoch-nodes selects no pod"},
		{"Service", "epicepoch", "component: node\n", "component: backup\n", "Service epicepoch selects no pod"},
		{"Service", "epicepoch-join", "targetPort: raft", "targetPort: rafts", "no port rafts"},
		{"PodDisruptionBudget", "epicepoch", "component: node\n", "component: n\n", "PodDisruptionBudget epicepoch"},
		{"StatefulSet", "epicepoch", "serviceName: epicepoch-nodes", "serviceName: epicepoch", "serviceName"},
		{"StatefulSet", "epicepoch", "port: clients", "port: client", "no port client"},
		{"StatefulSet", "epicepoch", "startupProbe", "otherProbe", "a probe is missing"},
		{"ServiceMonitor", "epicepoch", "component: nodes", "component: clients", "ServiceMonitor"},
	} {
		objects := rendered(t, render.Plain, render.Secured, render.Full)
		for at, object := range objects {
			if object.Kind == it.kind && object.Name == it.name {
				objects[at].YAML = strings.Replace(object.YAML+"\n", it.old, it.new, 1)
				if objects[at].YAML == object.YAML+"\n" {
					t.Fatalf("%s %s has no %q", it.kind, it.name, it.old)
				}
			}
		}
		if err := fit(objects); err == nil || !strings.Contains(err.Error(), it.says) {
			t.Errorf("%q in place of %q: %v", it.new, it.old, err)
		}
	}
}

// TestEachVariableIsASettingThatTheProgramTakes gives the variables of each node to `epicepoch check-config`.
func TestEachVariableIsASettingThatTheProgramTakes(t *testing.T) {
	files := certificates(t, pod)
	objects := rendered(t, render.Variants["cert-manager"]...)
	issue(t, files, decoded[certmanager.Certificate](t, objects, "Certificate", "epicepoch"))
	backUp(t, files)
	for name, sets := range render.Variants {
		set := decoded[apps.StatefulSet](t, rendered(t, sets...), "StatefulSet", "epicepoch")
		first, count := int(set.Spec.Ordinals.Start), int(*set.Spec.Replicas)
		for id := first; id < first+count; id++ {
			variables := expanded(set.Spec.Template.Spec.Containers[0].Env, id)
			report, code := check(t, files, variables)
			if code == 2 || len(report.Settings) == 0 {
				t.Errorf("%s: node %d: exit code %d: %v", name, id, code, report.Problems)
			}
			for variable := range variables {
				if strings.HasPrefix(variable, "EPICEPOCH_") {
					continue
				}
				if report.Sources[variable] != "the environment variable "+variable {
					t.Errorf("%s: node %d: %s is no setting of the program", name, id, variable)
				}
			}
			if address := fmt.Sprintf("epicepoch-%d.%s:8080", id, render.Nodes); report.Settings["ADVERTISE_ADDR"] != address {
				t.Errorf("%s: node %d: clients are told %v", name, id, report.Settings["ADVERTISE_ADDR"])
			}
		}
	}
	// The check can fail.
	for variable, value := range map[string]string{"NODE_ID": "0", "BOOTSTRAP": "1", "HEARTBEAT_MS": "100000"} {
		set := decoded[apps.StatefulSet](t, rendered(t, render.Plain), "StatefulSet", "epicepoch")
		variables := expanded(set.Spec.Template.Spec.Containers[0].Env, 1)
		variables[variable] = value
		if _, code := check(t, files, variables); code != 2 {
			t.Errorf("%s=%s: exit code %d", variable, value, code)
		}
	}
}

// allowedSettings are those that the schema allows in the value `settings`.
func allowedSettings(t *testing.T) map[string]any {
	t.Helper()
	loaded, err := render.Load()
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Settings struct {
				Properties map[string]any `json:"properties"`
			} `json:"settings"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(loaded.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	return schema.Properties.Settings.Properties
}

// TestTheSchemaAllowsOnlySettingsOfTheProgram and none that the chart sets itself.
func TestTheSchemaAllowsOnlySettingsOfTheProgram(t *testing.T) {
	set := decoded[apps.StatefulSet](t, rendered(t, render.Plain, render.Secured), "StatefulSet", "epicepoch")
	variables := expanded(set.Spec.Template.Spec.Containers[0].Env, 3)
	report, _ := check(t, certificates(t, pod), variables)
	allowed := allowedSettings(t)
	loaded, err := render.Load()
	if err != nil {
		t.Fatal(err)
	}
	// Those with a default in values.yaml, and no others, are set without being given.
	defaults := loaded.Values["settings"].(map[string]any)
	if len(allowed) < 10 {
		t.Fatalf("the schema allows %d settings", len(allowed))
	}
	for setting := range allowed {
		if _, is := report.Settings[setting]; !is {
			t.Errorf("the program has no setting %s", setting)
		}
		_, isSet := variables[setting]
		if _, isDefault := defaults[setting]; isSet && !isDefault {
			t.Errorf("the chart sets %s itself", setting)
		}
	}
}

// TestANodeFoundsAClusterOnlyIfTold: without `bootstrap`, a node has neither BOOTSTRAP nor PEERS, and can only join.
func TestANodeFoundsAClusterOnlyIfTold(t *testing.T) {
	for name, sets := range render.Variants {
		set := decoded[apps.StatefulSet](t, rendered(t, sets...), "StatefulSet", "epicepoch")
		variables := expanded(set.Spec.Template.Spec.Containers[0].Env, 1)
		isTold := strings.Contains(strings.Join(sets, "\n"), "bootstrap: true")
		_, founds := variables["BOOTSTRAP"]
		_, has := variables["PEERS"]
		_, joins := variables["JOIN"]
		if founds != isTold || has != isTold || joins == isTold {
			t.Errorf("%s: BOOTSTRAP %v, PEERS %v, JOIN %v", name, founds, has, joins)
		}
	}
}

// TestAGrowingClusterRestartsNoPod: the template of the pods does not depend on the number of nodes or the first one.
func TestAGrowingClusterRestartsNoPod(t *testing.T) {
	template := func(set string) core.PodTemplateSpec {
		objects := rendered(t, render.Plain, render.Secured, render.CertManager, set)
		return decoded[apps.StatefulSet](t, objects, "StatefulSet", "epicepoch").Spec.Template
	}
	if three := template("replicas: 3"); !reflect.DeepEqual(three, template("{ replicas: 5, firstNode: 3 }")) {
		t.Error("replicas and firstNode change the template of the pods")
	}
}

// TestTheRulesAreThoseOfDeploy compares the PrometheusRule with deploy/prometheus.
func TestTheRulesAreThoseOfDeploy(t *testing.T) {
	objects := rendered(t, render.Variants["full"]...)
	rule := decoded[monitoring.PrometheusRule](t, objects, "PrometheusRule", "epicepoch")
	var expected []monitoring.RuleGroup
	for _, name := range []string{"recording.yaml", "alerts.yaml"} {
		text, err := os.ReadFile(filepath.Join(render.Root(), "deploy/prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Groups []monitoring.RuleGroup `json:"groups"`
		}
		if err := yaml.UnmarshalStrict(text, &file); err != nil {
			t.Fatal(err)
		}
		expected = append(expected, file.Groups...)
	}
	if len(expected) < 2 || !reflect.DeepEqual(rule.Spec.Groups, expected) {
		t.Error("the rules differ from deploy/prometheus")
	}
}

// TestTheVersionIsThatOfTheProgram compares Chart.yaml and the compose file with Cargo.toml.
func TestTheVersionIsThatOfTheProgram(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(render.Root(), "Cargo.toml"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^version = "([0-9.]+)"$`).FindSubmatch(text)[1]
	loaded, err := render.Load()
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Metadata.AppVersion != string(version) || loaded.Metadata.Version != string(version) {
		t.Errorf("Chart.yaml has %s and %s, Cargo.toml %s", loaded.Metadata.Version, loaded.Metadata.AppVersion, version)
	}
	compose, err := os.ReadFile(filepath.Join(render.Root(), "deploy/compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(compose, []byte("localhost/epicepoch:"+string(version)+"}")) {
		t.Errorf("deploy/compose.yaml has another version than %s", version)
	}
}

// TestTheChartAsksForTheKubernetesThatItNeeds: pods have the label of their number from 1.28 on.
func TestTheChartAsksForTheKubernetesThatItNeeds(t *testing.T) {
	loaded, err := render.Load()
	if err != nil {
		t.Fatal(err)
	}
	for version, is := range map[string]bool{"v1.27.9": false, "v1.28.0": true, "v1.30.1-gke.100": true} {
		if chartutil.IsCompatibleRange(loaded.Metadata.KubeVersion, version) != is {
			t.Errorf("%s: expected %v", version, is)
		}
	}
}

func rendered(t *testing.T, sets ...string) []render.Object {
	t.Helper()
	objects, err := render.Chart(sets...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// strict decodes an object with the types of its API.
func strict(object render.Object) error {
	types := map[string]any{
		"StatefulSet": &apps.StatefulSet{}, "Service": &core.Service{}, "CronJob": &batch.CronJob{},
		"PodDisruptionBudget": &policy.PodDisruptionBudget{}, "Certificate": &certmanager.Certificate{},
		"ServiceMonitor": &monitoring.ServiceMonitor{}, "PrometheusRule": &monitoring.PrometheusRule{},
	}
	into, is := types[object.Kind]
	if !is {
		return fmt.Errorf("no type for %s", object.Kind)
	}
	return yaml.UnmarshalStrict([]byte(object.YAML), into)
}

func decoded[T any](t *testing.T, objects []render.Object, kind, name string) T {
	t.Helper()
	var into T
	for _, object := range objects {
		if object.Kind == kind && object.Name == name {
			if err := yaml.UnmarshalStrict([]byte(object.YAML), &into); err != nil {
				t.Fatal(err)
			}
			return into
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return into
}

// fit checks selectors and the names of ports.
func fit(objects []render.Object) error {
	var set apps.StatefulSet
	services := map[string]core.Service{}
	for _, object := range objects {
		switch object.Kind {
		case "StatefulSet":
			if err := yaml.Unmarshal([]byte(object.YAML), &set); err != nil {
				return err
			}
		case "Service":
			var service core.Service
			if err := yaml.Unmarshal([]byte(object.YAML), &service); err != nil {
				return err
			}
			services[object.Name] = service
		}
	}
	template := set.Spec.Template
	ports := map[string]bool{}
	for _, port := range template.Spec.Containers[0].Ports {
		ports[port.Name] = true
	}
	for name, service := range services {
		if !within(service.Spec.Selector, template.Labels) {
			return fmt.Errorf("Service %s selects no pod", name)
		}
		for _, port := range service.Spec.Ports {
			if !ports[port.TargetPort.StrVal] {
				return fmt.Errorf("Service %s: no port %s", name, port.TargetPort.StrVal)
			}
		}
	}
	headless := services[set.Spec.ServiceName].Spec
	if headless.ClusterIP != "None" || !headless.PublishNotReadyAddresses {
		return fmt.Errorf("serviceName %s is no headless service with all addresses", set.Spec.ServiceName)
	}
	container := template.Spec.Containers[0]
	for _, probe := range []*core.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil && probe.TCPSocket == nil {
			return fmt.Errorf("a probe is missing")
		}
		var port string
		if probe.HTTPGet != nil {
			port = probe.HTTPGet.Port.StrVal
		} else {
			port = probe.TCPSocket.Port.StrVal
		}
		if !ports[port] {
			return fmt.Errorf("a probe: no port %s", port)
		}
	}
	for _, object := range objects {
		switch object.Kind {
		case "PodDisruptionBudget":
			var budget policy.PodDisruptionBudget
			if err := yaml.Unmarshal([]byte(object.YAML), &budget); err != nil {
				return err
			}
			if !within(budget.Spec.Selector.MatchLabels, template.Labels) {
				return fmt.Errorf("PodDisruptionBudget %s selects no pod", object.Name)
			}
		case "ServiceMonitor":
			var monitor monitoring.ServiceMonitor
			if err := yaml.Unmarshal([]byte(object.YAML), &monitor); err != nil {
				return err
			}
			var selected []string
			for name, service := range services {
				if within(monitor.Spec.Selector.MatchLabels, service.Labels) {
					selected = append(selected, name)
				}
			}
			if !slices.Equal(selected, []string{set.Spec.ServiceName}) {
				return fmt.Errorf("ServiceMonitor %s selects %v", object.Name, selected)
			}
		}
	}
	return nil
}

func within(some, all map[string]string) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return len(some) > 0
}

// expanded are the variables of a container in the pod of a node, as the kubelet expands them.
func expanded(variables []core.EnvVar, id int) map[string]string {
	values := map[string]string{}
	for _, variable := range variables {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			value = map[string]string{
				"metadata.labels['apps.kubernetes.io/pod-index']": fmt.Sprint(id),
				"metadata.labels['topology.kubernetes.io/zone']":  fmt.Sprintf("eu-1%c", 'a'+id%3),
			}[from.FieldRef.FieldPath]
		}
		for name, known := range values {
			value = strings.ReplaceAll(value, "$("+name+")", known)
		}
		values[variable.Name] = value
	}
	return values
}

type report struct {
	Settings map[string]any    `json:"settings"`
	Sources  map[string]string `json:"sources"`
	Problems []string          `json:"problems"`
}

// check runs `epicepoch check-config` with variables. Their files are below `files` in place of /etc/epicepoch.
func check(t *testing.T, files string, variables map[string]string) (report, int) {
	t.Helper()
	command := exec.Command(program(t), "check-config", "--output", "json")
	command.Env = []string{"PATH=/nonexistent"}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := strings.ReplaceAll(variables[name], "/etc/epicepoch/", files+"/")
		value = strings.ReplaceAll(value, "/var/lib/epicepoch/", files+"/data/")
		command.Env = append(command.Env, name+"="+value)
	}
	var found report
	text, err := command.Output()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return found, command.ProcessState.ExitCode()
}

func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("EPICEPOCH_BIN")
	if path == "" {
		t.Fatal("set EPICEPOCH_BIN to the program")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(render.Root(), path)
	}
	return path
}
