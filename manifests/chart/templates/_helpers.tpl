{{/* The labels of the dispatcher's pods. */}}
{{- define "dispatcher.labels" -}}
app.kubernetes.io/name: appwrapper-dispatcher
{{- end }}

{{/* The image of the dispatcher. */}}
{{- define "dispatcher.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What both containers have in common. */}}
{{- define "dispatcher.container" -}}
image: {{ include "dispatcher.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The variables of a container: a list of the context and the container's own defaults, which settings replace. */}}
{{- define "dispatcher.environment" -}}
{{- $context := index . 0 -}}
- name: DISPATCHER_DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ $context.Values.database.secretName }}, key: url}
{{- $trial := ternary (dict "DISPATCHER_DATABASE_TLS" "unverified") (dict) $context.Values.trialPostgres.enabled }}
{{- range $name, $value := merge (dict) $context.Values.settings $trial (index . 1) }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The rule for a wrapped kind: a list of the entry and of the plurals of the core group that only need some verbs. */}}
{{- define "dispatcher.wrapped" -}}
{{- $kind := index . 0 -}}
{{- $known := dict "verbs" "[create, get, list, watch, patch, delete]" -}}
{{- if eq $kind.group "" }}{{ $known = dict "verbs" (get (index . 1) $kind.resource | default $known.verbs) }}{{ end -}}
- {apiGroups: [{{ $kind.group | quote }}], resources: [{{ $kind.resource }}], verbs: {{ $known.verbs }}}
{{- end }}

{{/* A list of strings without quotes, as CEL and YAML write it. */}}
{{- define "dispatcher.list" -}}
{{- if . }}['{{ join "', '" . }}']{{ else }}[]{{ end }}
{{- end }}

{{/* The settings of `tenants` and `policies`, by variable; a bound that is null is left out. */}}
{{- define "dispatcher.bounds" -}}
{{- $tenants := .Values.tenants -}}
{{- if not (kindIs "invalid" $tenants.maxPriority) }}
DISPATCHER_MAX_PRIORITY: {{ int64 $tenants.maxPriority | toString | quote }}
{{- end }}
{{- if not (kindIs "invalid" $tenants.maxPrioritySlope) }}
DISPATCHER_MAX_PRIORITY_SLOPE: {{ $tenants.maxPrioritySlope | toString | quote }}
{{- end }}
DISPATCHER_QUEUED_PER_NAMESPACE: {{ int64 $tenants.queuedPerNamespace | toString | quote }}
DISPATCHER_QUEUE_ACCESS: {{ $tenants.queueAccess }}
DISPATCHER_DENIED_NAMESPACES: {{ join "," .Values.policies.deniedNamespaces }}
{{- if ne $tenants.submitter "namespace" }}
DISPATCHER_SUBMITTER: annotation
{{- end }}
{{- end }}
