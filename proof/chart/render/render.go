// Package render renders the chart with Helm's code. It contacts no cluster.
package render

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Names of the release in all tests.
const (
	Release   = "epicepoch"
	Namespace = "oracle"
	// Nodes is the domain of the nodes' names.
	Nodes = "epicepoch-nodes.oracle.svc.cluster.local"
)

// Object is one object of Kubernetes, as YAML.
type Object struct {
	Kind, Name, YAML string
}

// Root is the root of the repository.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("the path of this file is not known")
	}
	return filepath.Join(filepath.Dir(file), "../../..")
}

// Load reads the chart, once.
var Load = sync.OnceValues(func() (*chart.Chart, error) {
	return loader.LoadDir(filepath.Join(Root(), "deploy/chart/epicepoch"))
})

// Chart renders the chart. Each of `sets` is YAML that overrides values, the last one first.
func Chart(sets ...string) ([]Object, error) {
	options := chartutil.ReleaseOptions{Name: Release, Namespace: Namespace, Revision: 1, IsInstall: true}
	loaded, all, err := values(options, sets)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, text := range strings.Split("\n"+files[name], "\n---\n") {
			object, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, text)
			}
			if object.Kind != "" {
				objects = append(objects, object)
			}
		}
	}
	return objects, nil
}

func values(options chartutil.ReleaseOptions, sets []string) (*chart.Chart, chartutil.Values, error) {
	loaded, err := Load()
	if err != nil {
		return nil, nil, err
	}
	values := map[string]any{}
	for _, set := range sets {
		more := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(set), &more); err != nil {
			return nil, nil, err
		}
		values = chartutil.CoalesceTables(more, values)
	}
	all, err := chartutil.ToRenderValues(loaded, values, options, chartutil.DefaultCapabilities)
	return loaded, all, err
}

// Upgrade renders the chart as `helm upgrade` does while the cluster has this StatefulSet, given as YAML, and a pod
// that is ready for each of its nodes up to `ready`.
func Upgrade(existing string, ready int, sets ...string) error {
	set := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(existing), &set); err != nil {
		return err
	}
	options := chartutil.ReleaseOptions{Name: Release, Namespace: Namespace, Revision: 2, IsUpgrade: true}
	loaded, all, err := values(options, sets)
	if err != nil {
		return err
	}
	_, err = engine.RenderWithClientProvider(loaded, all, server{set: set, ready: ready})
	return err
}

// server stands for an API server that has one StatefulSet, and its pods. The template function `lookup` asks it.
type server struct {
	dynamic.NamespaceableResourceInterface
	set   map[string]any
	ready int
	kind  string
}

func (it server) GetClientFor(version, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	if known := version + " " + kind; known != "apps/v1 StatefulSet" && known != "v1 Pod" {
		return nil, false, fmt.Errorf("the chart looks up %s", known)
	}
	it.kind = kind
	return it, true, nil
}

func (it server) Namespace(name string) dynamic.ResourceInterface {
	if name != Namespace {
		panic("the chart looks into the namespace " + name)
	}
	return it
}

func (it server) Get(
	_ context.Context, name string, _ meta.GetOptions, _ ...string,
) (*unstructured.Unstructured, error) {
	if it.kind == "Pod" {
		id, err := strconv.Atoi(strings.TrimPrefix(name, Release+"-"))
		if err != nil {
			return nil, err
		}
		status := "False"
		if id <= it.ready {
			status = "True"
		}
		condition := map[string]any{"type": "Ready", "status": status}
		pod := map[string]any{"status": map[string]any{"conditions": []any{condition}}}
		return &unstructured.Unstructured{Object: pod}, nil
	}
	if name != Release {
		return nil, fmt.Errorf("the chart looks up the StatefulSet %s", name)
	}
	return &unstructured.Unstructured{Object: it.set}, nil
}

func parse(text string) (Object, error) {
	var head struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	err := yaml.Unmarshal([]byte(text), &head)
	return Object{Kind: head.Kind, Name: head.Metadata.Name, YAML: text}, err
}

// Values with which the tests render the chart.
const (
	Plain = `
image: { repository: registry.example/epicepoch }
tls: { source: none }
opsPlainFrom: 10.0.0.0/8
`
	Founding = `
bootstrap: true
`
	Secured = `
tls: { source: secret, secretName: epicepoch-tls }
tokens: { clients: { secretName: epicepoch-tokens }, operators: { secretName: epicepoch-tokens } }
adminFrom: any
opsPlainFrom: loopback
`
	Full = `
replicas: 5
firstNode: 3
http3: true
zones: true
antiAffinity: required
nodeSelector: { disk: fast }
tolerations: [{ key: oracle, operator: Exists }]
priorityClassName: system-cluster-critical
podAnnotations: { note: "yes" }
image: { pullSecrets: [registry] }
storage: { className: fast, accessMode: ReadWriteOncePod }
service: { type: LoadBalancer, annotations: { note: "yes" } }
settings:
  { ELECTION_TIMEOUT_MS: "300", DEBUG: "on", LEADER_ZONES: "eu-1b", TIMESTAMP_FORMAT: compact,
    SHUTDOWN_TIMEOUT_MS: "60000" }
monitoring: { enabled: true, tokenSecretName: prometheus, labels: { release: prometheus } }
backup: { enabled: true, existingClaim: backups }
`
	CertManager = `
tls: { source: certManager, secretName: epicepoch-tls, certManager: { issuerName: authority } }
`
	Accepting = `
tls: { clients: both, peers: accept }
settings: { HTTP_BIND: "::", RAFT_BIND: "::" }
`
	Restore = `
bootstrap: true
replicas: 3
restore: { secretName: epicepoch-backup }
settings: { RESTORE_LEASE_MS: "0" }
`
)

// Variants are the values that every test of all objects takes.
var Variants = map[string][]string{
	"plain":        {Plain},
	"founding":     {Plain, Founding},
	"secured":      {Plain, Secured},
	"accepting":    {Plain, Secured, Accepting},
	"full":         {Plain, Secured, Full},
	"cert-manager": {Plain, Secured, Full, CertManager},
	"restore":      {Plain, Secured, Full, Restore},
	"plain-full":   {Plain, Full, "monitoring: { tokenSecretName: \"\" }"},
}
