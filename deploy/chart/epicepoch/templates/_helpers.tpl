{{- /* The name of all objects: that of the release, with "epicepoch" unless it contains it. */ -}}
{{- define "epicepoch.name" -}}
{{- if contains "epicepoch" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-epicepoch" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "epicepoch.selector" -}}
app.kubernetes.io/name: epicepoch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "epicepoch.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "epicepoch.selector" . }}
{{- end -}}

{{- define "epicepoch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The domain of the nodes' names, and that of the services. */ -}}
{{- define "epicepoch.domain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}
{{- define "epicepoch.nodes" -}}
{{ include "epicepoch.name" . }}-nodes.{{ include "epicepoch.domain" . }}
{{- end -}}

{{- define "epicepoch.clientTls" -}}
{{- if eq .Values.tls.source "none" }}off{{ else }}{{ .Values.tls.clients }}{{ end -}}
{{- end -}}
{{- define "epicepoch.scheme" -}}
{{- if eq (include "epicepoch.clientTls" .) "off" }}HTTP{{ else }}HTTPS{{ end -}}
{{- end -}}

{{- /* Which connections between nodes use TLS. */ -}}
{{- define "epicepoch.peerTls" -}}
{{- if eq .Values.tls.source "none" }}off{{ else }}{{ .Values.tls.peers }}{{ end -}}
{{- end -}}

{{- /* Files of the nodes' certificates, below /etc/epicepoch/tls. */ -}}
{{- define "epicepoch.ca" -}}
/etc/epicepoch/tls/{{ if eq .Values.tls.source "secret" }}ca.pem{{ else }}ca.crt{{ end }}
{{- end -}}

{{- /* Refuses values that contradict each other, or that lack another value. */ -}}
{{- define "epicepoch.check" -}}
{{- $v := .Values -}}
{{- $last := int (add $v.firstNode $v.replicas -1) -}}
{{- $isPlain := eq (include "epicepoch.scheme" .) "HTTP" -}}
{{- $isAsked := or $v.monitoring.enabled $v.backup.enabled -}}
{{- if and (ne $v.tls.source "none") (not $v.tls.secretName) -}}
  {{- fail "set tls.secretName: the secret with the nodes' certificates" -}}
{{- end -}}
{{- if eq $v.tls.source "certManager" -}}
  {{- if not $v.tls.certManager.issuerName -}}
    {{- fail "set tls.certManager.issuerName: the issuer of the nodes' certificates" -}}
  {{- end -}}
  {{- if gt (int $v.replicas) (int $v.tls.certManager.nodesMax) -}}
    {{- fail "raise tls.certManager.nodesMax: the certificate does not have the name of the last node" -}}
  {{- end -}}
{{- end -}}
{{- if and $v.restore.secretName (not $v.bootstrap) -}}
  {{- fail "set bootstrap=true with restore.secretName: a restore founds a new history, with empty volumes" -}}
{{- end -}}
{{- if and $v.bootstrap (gt (int $v.firstNode) 1) (not $v.restore.secretName) -}}
  {{- fail "leave firstNode at 1 with bootstrap: a new cluster begins with node 1" -}}
{{- end -}}
{{- if and $v.bootstrap (eq (mod (int $v.replicas) 2) 0) (not $v.restore.secretName) -}}
  {{- fail "found the cluster with an odd number of replicas, such as 3" -}}
{{- end -}}
{{- if and (get $v.settings "RESTORE_FLOOR") (not $v.bootstrap) -}}
  {{- fail "unset settings.RESTORE_FLOOR without bootstrap: only nodes that found a cluster have a floor" -}}
{{- end -}}
{{- if and (get $v.settings "LEADER_ZONES") (not $v.zones) -}}
  {{- fail "set zones: true with settings.LEADER_ZONES: each node needs a zone" -}}
{{- end -}}
{{- /* `lookup` finds nothing in `helm template`, and before the first installation. */ -}}
{{- $name := include "epicepoch.name" . -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $set -}}
  {{- $first := dig "spec" "ordinals" "start" 0 $set | int -}}
  {{- $lastNow := sub (add $first (dig "spec" "replicas" 1 $set | int)) 1 | int -}}
  {{- $ready := dig "status" "readyReplicas" 0 $set | int -}}
  {{- if lt (int $v.firstNode) $first -}}
    {{- $patch := printf `{"spec":{"replicas":%d,"ordinals":{"start":%d}}}` (int $v.replicas) (int $v.firstNode) -}}
    {{- $kubectl := printf "kubectl --namespace %s patch statefulset %s" .Release.Namespace $name -}}
    {{- fail (printf "firstNode is %d in the cluster: it never falls, because ids are not used again. %s: %s %s '%s'"
        $first "If lower nodes are still members, run this first" $kubectl "--type merge --patch" $patch) -}}
  {{- end -}}
  {{- range $id := untilStep $first (min (int $v.firstNode) (int (add $lastNow 1)) | int) 1 -}}
    {{- $pod := printf "%s-%d" $name $id -}}
    {{- range dig "status" "conditions" list (lookup "v1" "Pod" $.Release.Namespace $pod) -}}
      {{- if and (eq .type "Ready") (eq .status "True") -}}
        {{- fail (printf "firstNode would end the pod %s, which is ready: first \"member remove %d\"" $pod $id) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if lt $last $lastNow -}}
    {{- fail (printf "the last node (firstNode + replicas - 1) is %d in the cluster: it never falls" $lastNow) -}}
  {{- end -}}
  {{- if and .Release.IsUpgrade $v.bootstrap (gt $ready 0) -}}
    {{- fail "unset bootstrap and restore.secretName: the cluster is founded, as its ready pods show" -}}
  {{- end -}}
  {{- $env := dict -}}
  {{- range dig "spec" "template" "spec" "containers" list $set -}}
    {{- range .env }}{{ $_ := set $env .name (get . "value") }}{{ end -}}
  {{- end -}}
  {{- $cluster := get $env "CLUSTER" | default $v.cluster -}}
  {{- if ne $v.cluster $cluster -}}
    {{- fail (printf "cluster is %q in the cluster: it never changes, because each volume has this name" $cluster) -}}
  {{- end -}}
  {{- $rounds := dict "off" 0 "accept" 1 "dial" 2 "on" 3 -}}
  {{- $peers := include "epicepoch.peerTls" . -}}
  {{- $peersNow := get $env "PEER_TLS" | default (ternary "off" "on" (hasKey $env "PEER_PLAIN")) -}}
  {{- $step := sub (get $rounds $peers) (get $rounds $peersNow) -}}
  {{- if and $env (gt (mul $step $step) 1) -}}
    {{- fail (printf "PEER_TLS is %q in the cluster, and would be %q: such nodes refuse each other. %s" $peersNow $peers
        "Take the rounds of docs/operations/kubernetes.md#from-plain-text-to-tls") -}}
  {{- end -}}
{{- end -}}
{{- if and $isAsked (eq $v.opsPlainFrom "loopback") (or $isPlain (not $v.tokens.operators.secretName)) -}}
  {{- fail "monitoring and backup ask the nodes: set tokens.operators.secretName and TLS, or opsPlainFrom" -}}
{{- end -}}
{{- if and $v.monitoring.enabled $v.tokens.operators.secretName (not $v.monitoring.tokenSecretName) -}}
  {{- fail "set monitoring.tokenSecretName: Prometheus needs a token of operators" -}}
{{- end -}}
{{- if and $v.backup.enabled (not $v.backup.existingClaim) -}}
  {{- fail "set backup.existingClaim: the volume for backups" -}}
{{- end -}}
{{- end -}}

{{- /* The first nodes with their ids, for PEERS. */ -}}
{{- define "epicepoch.peers" -}}
{{- range $i := until (int .Values.replicas) -}}
  {{- $id := add $i $.Values.firstNode -}}
  {{- if $i }},{{ end }}{{ $id }}={{ include "epicepoch.name" $ }}-{{ $id }}.{{ include "epicepoch.nodes" $ }}:60001
{{- end -}}
{{- end -}}

{{- /* The client addresses of all nodes. */ -}}
{{- define "epicepoch.addresses" -}}
{{- range $i := until (int .Values.replicas) -}}
  {{- if $i }},{{ end -}}
  {{ include "epicepoch.name" $ }}-{{ add $i $.Values.firstNode }}.{{ include "epicepoch.nodes" $ }}:8080
{{- end -}}
{{- end -}}

{{- define "epicepoch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "epicepoch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- /* Variables for commands of the program in a pod, and their files. */ -}}
{{- define "epicepoch.tools" -}}
- name: EPICEPOCH_ADDRS
  value: {{ include "epicepoch.name" . }}.{{ include "epicepoch.domain" . }}:8080
- name: EPICEPOCH_CLUSTER
  value: {{ .Values.cluster | quote }}
{{- if eq (include "epicepoch.scheme" .) "HTTPS" }}
- name: EPICEPOCH_CA_FILE
  value: {{ include "epicepoch.ca" . }}
{{- end }}
{{- with .Values.tokens.clients }}{{ if .secretName }}
- name: EPICEPOCH_TOKEN_FILE
  value: /etc/epicepoch/clients/{{ .key }}
{{- end }}{{ end }}
{{- with .Values.tokens.operators }}{{ if .secretName }}
- name: EPICEPOCH_OPS_TOKEN_FILE
  value: /etc/epicepoch/operators/{{ .key }}
{{- end }}{{ end }}
{{- end -}}

{{- define "epicepoch.fileMounts" -}}
{{- if ne .Values.tls.source "none" }}
- name: tls
  mountPath: /etc/epicepoch/tls
  readOnly: true
{{- end }}
{{- if .Values.tokens.clients.secretName }}
- name: clients
  mountPath: /etc/epicepoch/clients
  readOnly: true
{{- end }}
{{- if .Values.tokens.operators.secretName }}
- name: operators
  mountPath: /etc/epicepoch/operators
  readOnly: true
{{- end }}
{{- end -}}

{{- define "epicepoch.fileVolumes" -}}
{{- if ne .Values.tls.source "none" }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName }}
    defaultMode: 0400
{{- end }}
{{- if .Values.tokens.clients.secretName }}
- name: clients
  secret:
    secretName: {{ .Values.tokens.clients.secretName }}
    defaultMode: 0400
{{- end }}
{{- if .Values.tokens.operators.secretName }}
- name: operators
  secret:
    secretName: {{ .Values.tokens.operators.secretName }}
    defaultMode: 0400
{{- end }}
{{- end -}}
