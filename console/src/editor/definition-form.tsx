import { Group, Paper, SimpleGrid, Stack, TextInput } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { useMemo } from 'react'
import { useDraft, useSent } from '#components/draft.tsx'
import { useGuardedSave } from '#components/guarded-save.tsx'
import { parseObject, Restored, SubmitRow, type Values } from '#components/schema-form.tsx'
import { FailureAlert } from '#components/states.tsx'
import { jsonText } from '#json.ts'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { useDefinitionText } from './definition-text.ts'
import type { Unfinished } from './expression.tsx'
import { GraphEditor } from './graph-editor.tsx'
import type { GraphKind } from './kind.ts'
import { useRecords } from './records.ts'

/** Time without input after which a definition is validated. */
const PAUSE_MS = 400

type Definition = { id: string; name: string; description: string | null; updated_at: string }

/** Creates or changes a record with a graph. */
export function DefinitionForm<Row extends Definition>({
  kind,
  title,
  ...save
}: {
  kind: GraphKind
  /** Says that another person has changed the record. */
  title: string
} & Omit<Parameters<typeof useGuardedSave<Row>>[0], 'title'> & { onCancel: () => void }) {
  const { base, formKey, save: onSubmit, dialog, ...state } = useGuardedSave<Row>({ title, ...save })
  return (
    <Paper withBorder p="lg" radius="lg">
      <Form key={formKey} kind={kind} record={base} onSubmit={onSubmit} onCancel={save.onCancel} {...state} />
      {dialog}
    </Paper>
  )
}

/** Returns the part of a record that is edited as a graph. */
const definitionOf = (kind: GraphKind, record: Values | undefined): Values =>
  record
    ? Object.fromEntries(
        kind.fields
          .map(name => [name, record[name]] as const)
          .filter(([, value]) => value !== null && value !== undefined),
      )
    : { [kind.lists.nodes]: [], [kind.lists.edges]: [] }

/** Returns the fields that differ from a record. A field that was taken out of the definition is emptied. */
function changeOf(kind: GraphKind, before: Values, given: Values): Values {
  const emptied = kind.fields.filter(field => before[field] != null && !(field in given))
  return Object.fromEntries(
    Object.entries({ ...given, ...Object.fromEntries(emptied.map(field => [field, null])) }).filter(
      ([key, value]) => JSON.stringify(value) !== JSON.stringify(before[key] ?? null),
    ),
  )
}

function Form({
  kind,
  record,
  isPending,
  error,
  onSubmit,
  onCancel,
}: {
  kind: GraphKind
  record?: Definition
  isPending: boolean
  error: unknown
  onSubmit: (change: Values) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const before = (record ?? {}) as Values
  const first = jsonText(definitionOf(kind, record as Values | undefined))
  // The text of an earlier record would take changes back that others made since.
  const initial = {
    name: record?.name ?? '',
    description: record?.description ?? '',
    label: '',
    json: first,
    unfinished: {} as Unfinished,
  }
  const draft = useDraft(`${kind.lists.nodes} ${record?.updated_at ?? ''}`, initial)
  const { name, description, label, json, unfinished } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const markSent = useSent(draft, { isPending, error })
  const editor = useDefinitionText(kind, json, first, json => set({ json }))
  const [settled] = useDebouncedValue(json, PAUSE_MS)
  const checked = useMemo(() => parseObject(settled), [settled])
  const { findings, error: invalid } = kind.useFindings(projectId, checked, error)
  const records = useRecords(projectId)
  const isComplete = editor.isValid && Object.keys(unfinished).length === 0 && name.trim() !== ''
  const submit = () => {
    if (!isComplete || isPending) return
    const given = { name: name.trim(), description: description.trim() || null, ...editor.definition }
    markSent()
    onSubmit({ ...changeOf(kind, before, given), ...(label.trim() ? { version_label: label.trim() } : {}) })
  }
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        submit()
      }}
    >
      <Stack gap="md">
        {draft.isRestored && JSON.stringify(draft.value) !== JSON.stringify(initial) && (
          <Restored onDiscard={() => draft.setValue(initial)} />
        )}
        <SimpleGrid cols={{ base: 1, sm: record ? 3 : 2 }}>
          <TextInput
            label={strings.name}
            value={name}
            onChange={event => set({ name: event.currentTarget.value })}
            required
            data-autofocus
          />
          <TextInput
            label={strings.agents.description}
            value={description}
            onChange={event => set({ description: event.currentTarget.value })}
          />
          {record && (
            <TextInput
              label={strings.orchestrations.label}
              value={label}
              onChange={event => set({ label: event.currentTarget.value })}
            />
          )}
        </SimpleGrid>
        <GraphEditor
          kind={kind}
          label={strings.runs.graph}
          text={json}
          editor={editor}
          findings={findings}
          records={records}
          unfinished={unfinished}
          onUnfinished={unfinished => set({ unfinished })}
        />
        {Boolean(invalid) && <FailureAlert error={invalid} />}
        <Group>
          <SubmitRow
            label={record ? strings.save : strings.create}
            isPending={isPending}
            error={error}
            disabled={!isComplete}
            onCancel={() => {
              draft.forget()
              onCancel()
            }}
          />
        </Group>
      </Stack>
    </form>
  )
}
