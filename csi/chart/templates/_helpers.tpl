{{- define "ferrite-csi.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ferrite-csi.labels" -}}
app.kubernetes.io/name: ferrite-csi
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ferrite-csi.selector" -}}
app.kubernetes.io/name: ferrite-csi
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
