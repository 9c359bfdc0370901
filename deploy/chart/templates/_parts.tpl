{{- define "gpusched.labels" -}}
{app.kubernetes.io/name: gpusched, app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}, app.kubernetes.io/component: {{ index . 1 }}}
{{- end -}}
{{- define "gpusched.container" -}}
image: {{ .root.Values.image }}
args: {{ toJson .command }}
env:
  - {name: GPUSCHED_DATABASE_URL_FILE, value: /run/gpusched/database_url}
  - {name: GPUSCHED_SECRET_KEY_FILE, value: /run/gpusched/secret_key}
  - {name: GPUSCHED_ALLOWED_HOSTS, value: {{ printf "%s,127.0.0.1" .root.Values.host | quote }}}
  - {name: GPUSCHED_TRUSTED_ORIGINS, value: {{ printf "https://%s" .root.Values.host | quote }}}
  - {name: GPUSCHED_TRUSTED_PROXIES, value: {{ .root.Values.trustedProxies | quote }}}
  - {name: GPUSCHED_BEHIND_TLS, value: "true"}
  - {name: GPUSCHED_HEADS, value: {{ printf "http://%s-heads:8000" .root.Release.Name | quote }}}
  {{- range $name, $value := .root.Values.settings }}
  - {name: {{ printf "GPUSCHED_%s" (upper $name) }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
  {{- end }}
volumeMounts:
  - {name: data, mountPath: /var/lib/gpusched}
  - {name: secret, mountPath: /run/gpusched, readOnly: true}
  - {name: tmp, mountPath: /tmp}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
{{- define "gpusched.pod" -}}
automountServiceAccountToken: false
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if ne .Values.storage.accessMode "ReadWriteMany" }}
affinity:
  podAffinity:
    # The volume is attached to one node at a time: a pod on another node would wait for ever.
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: gpusched, app.kubernetes.io/instance: {{ .Release.Name | quote }}}
{{- end }}
securityContext: {runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
volumes:
  - {name: data, persistentVolumeClaim: {claimName: {{ .Release.Name }}-data}}
  - {name: secret, secret: {secretName: {{ .Values.secret }}, defaultMode: 288}}
  - {name: tmp, emptyDir: {}}
{{- end -}}
