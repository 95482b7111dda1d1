import { FileInput, Select, Stack, Textarea, TextInput } from '@mantine/core'
import type { Case, CaseEvidenceInput } from '@muster/client'
import { addCaseEvidence, uploadFile } from '@muster/client/operations'
import { api } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { useDraft } from '#components/draft.tsx'
import { SubmitRow } from '#components/schema-form.tsx'
import * as strings from '#strings.ts'

export type EvidenceKind = CaseEvidenceInput['kind']
/** A piece of evidence that is being entered. */
export type EnteredEvidence = { text: string; file: File | null }

/** The part of a piece of evidence that is kept until it is sent: no file is. */
export const keptEvidence = ({ text }: EnteredEvidence): EnteredEvidence => ({ text, file: null })

/** Returns the evidence that was entered; a file is stored first. */
export async function evidenceOf(
  projectId: string,
  name: string,
  kind: EvidenceKind,
  { text, file }: EnteredEvidence,
): Promise<CaseEvidenceInput> {
  if (kind === 'note') return { name, kind, content: text }
  if (kind === 'link') return { name, kind, url: text.trim() }
  if (!file) return { name, kind }
  const stored = await uploadFile(api, { project_id: projectId, file, filename: file.name })
  return { name, kind, file_id: stored.id }
}

/** The field of a piece of evidence: a text, an address or a file. */
export function EvidenceField({
  label,
  kind,
  value,
  onChange,
}: {
  label: string
  kind: EvidenceKind
  value: EnteredEvidence
  onChange: (value: EnteredEvidence) => void
}) {
  if (kind === 'file')
    return (
      <FileInput
        label={label}
        description={strings.cases.fileHelp}
        required
        value={value.file}
        onChange={file => onChange({ ...value, file })}
      />
    )
  const common = {
    label,
    required: true,
    value: value.text,
    onChange: (event: { currentTarget: { value: string } }) => onChange({ ...value, text: event.currentTarget.value }),
  }
  return kind === 'link' ? (
    <TextInput type="url" placeholder="https://" {...common} />
  ) : (
    <Textarea autosize minRows={3} maxRows={16} {...common} />
  )
}

/** Adds a piece of evidence to a case. */
export function EvidenceForm({ record, onDone }: { record: Case; onDone: () => void }) {
  const draft = useDraft<{ name: string; kind: EvidenceKind; value: EnteredEvidence }>(
    'evidence',
    { name: '', kind: 'note', value: { text: '', file: null } },
    ({ value, ...others }) => ({ ...others, value: keptEvidence(value) }),
  )
  const { name, kind, value } = draft.value
  const change = (fields: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...fields }))
  const close = () => {
    draft.forget()
    onDone()
  }
  const add = useAction({
    run: async () =>
      addCaseEvidence(api, { case_id: record.id, ...(await evidenceOf(record.project_id, name.trim(), kind, value)) }),
    stale: [['case', record.id]],
    onDone: close,
  })
  const labels = { note: strings.text, link: strings.cases.url, file: strings.cases.file }
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        add.mutate()
      }}
    >
      <Stack gap="md">
        <TextInput
          label={strings.name}
          required
          value={name}
          onChange={event => change({ name: event.currentTarget.value })}
          data-autofocus
        />
        <Select
          label={strings.cases.evidenceKind}
          data={(['note', 'file', 'link'] as const).map(each => ({
            value: each,
            label: strings.cases.evidenceKinds[each],
          }))}
          value={kind}
          onChange={next => change({ kind: (next ?? 'note') as EvidenceKind })}
          allowDeselect={false}
        />
        <EvidenceField label={labels[kind]} kind={kind} value={value} onChange={next => change({ value: next })} />
        <SubmitRow label={strings.cases.addEvidence} isPending={add.isPending} error={add.error} onCancel={close} />
      </Stack>
    </form>
  )
}
