import { Alert, Badge, Button, Card, Group, JsonInput, SimpleGrid, Stack, Text, TextInput } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import { ExactNumber, type Finding, type Orchestration, type OrchestrationInput } from '@muster/client'
import { createOrchestration, getOrchestration, updateOrchestration } from '@muster/client/operations'
import { useNavigate } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import { api } from '#api.ts'
import { useDraft, useSent } from '#components/draft.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { parseObject, SubmitRow, type Values } from '#components/schema-form.tsx'
import { FailureAlert } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { definitionGraph, type Findings, nodeOf } from '#graph/definition.ts'
import { GraphPanel } from '#graph/graph-panel.tsx'
import type { Definition } from '#graph/run-state.ts'
import { useFindings } from '#graph/validation.ts'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Time without input after which a definition is validated. */
const PAUSE_MS = 400

/** The graph with which a new orchestration begins: it runs unchanged. */
const EXAMPLE = {
  nodes: [
    { id: 'price', type: 'transform', expression: { '*': [{ var: 'input.price' }, 0.9] } },
    {
      id: 'large',
      type: 'condition',
      expression: { if: [{ '>': [{ var: 'nodes.price.result' }, 100] }, 'yes', 'no'] },
    },
    { id: 'ask', type: 'human', prompt: 'Accept this price?', options: ['accept', 'refuse'] },
    { id: 'done', type: 'transform', expression: { var: 'nodes.price.result' } },
  ],
  edges: [
    { from: 'price', to: 'large' },
    { from: 'large', to: 'ask', condition: 'yes' },
    { from: 'large', to: 'done', condition: 'no' },
    { from: 'ask', to: 'done', condition: 'accept' },
  ],
  input_schema: { type: 'object', required: ['price'], properties: { price: { type: 'number' } } },
}

const FIELDS = ['nodes', 'edges', 'input_schema', 'state_schema'] as const

/** Returns the part of an orchestration that is edited as JSON. */
const definitionOf = (record: Orchestration): Values =>
  Object.fromEntries(FIELDS.map(name => [name, record[name]]).filter(([, value]) => value !== null))

/** Longest line of a value that is written in one line. */
const LINE = 64

/** Returns a value as JSON; a short value stays in one line. */
function textOf(value: unknown, indent = ''): string {
  const line = JSON.stringify(value, null, 1)?.replaceAll(/\n\s*/g, ' ')
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return line
  if (indent.length + line.length <= LINE) return line
  const inner = `${indent}  `
  const entries = Array.isArray(value)
    ? value.map(entry => textOf(entry, inner))
    : Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${textOf(entry, inner)}`)
  const [open, close] = Array.isArray(value) ? '[]' : '{}'
  return `${open}\n${inner}${entries.join(`,\n${inner}`)}\n${indent}${close}`
}

/** Form of a new orchestration. */
export function NewOrchestration() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const open = (to: string) => void navigate({ to })
  return (
    <Page title={strings.orchestrations.create} intro={strings.orchestrations.emptyText}>
      <OrchestrationForm
        onDone={id => open(`/p/${projectId}/orchestrations/${id}`)}
        onCancel={() => open(`/p/${projectId}/orchestrations`)}
      />
    </Page>
  )
}

/** Findings of the validator; one with a node leads to it. */
export function FindingList({
  findings: { problems, warnings },
  definition,
  onSelect,
}: {
  findings: Findings
  definition: Partial<Definition>
  onSelect: (id: string) => void
}) {
  const row = (finding: Finding, isProblem: boolean, index: number) => {
    const node = nodeOf(finding, definition)
    return (
      <Alert key={`${isProblem}${index}`} p="sm" color={isProblem ? 'red' : 'orange'}>
        <Group gap="xs" mb={4}>
          <Badge size="sm" variant={isProblem ? 'filled' : 'default'} color="red.9">
            {isProblem ? strings.graph.marks.problem : strings.graph.marks.warning}
          </Badge>
          <Text size="xs" className="mono">
            {visible(finding.path)}
          </Text>
        </Group>
        <Text size="sm">{visible(finding.message)}</Text>
        {node && (
          <Button size="compact-xs" variant="default" mt={6} onClick={() => onSelect(node)}>
            {strings.orchestrations.showNode(visible(node))}
          </Button>
        )}
      </Alert>
    )
  }
  return (
    <Stack gap="xs">
      {problems.map((finding, index) => row(finding, true, index))}
      {warnings.map((finding, index) => row(finding, false, index))}
    </Stack>
  )
}

/** Reads an orchestration, and what a later write of it names. */
export async function readOrchestration(id: string, signal?: AbortSignal): Promise<Read<Orchestration>> {
  const { data, etag } = await getOrchestration(api, { orchestration_id: id }, { signal }).withResponse()
  return { record: data, etag }
}

/** Creates or changes an orchestration. */
export function OrchestrationForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Orchestration>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const id = first?.record.id
  const { base, formKey, save, dialog, ...state } = useGuardedSave<Orchestration>({
    title: strings.orchestrations.changed,
    first,
    read: () => readOrchestration(id as string),
    write: async (change, options) =>
      id
        ? updateOrchestration(api, { ...change, orchestration_id: id }, options)
        : createOrchestration(api, { ...(change as OrchestrationInput), project_id: projectId }),
    stale: [['orchestrations'], ...(id ? [['orchestration', id]] : [])],
    onDone,
  })
  return (
    <Card withBorder padding="lg" radius="lg">
      <Editor key={formKey} record={base} onSubmit={save} onCancel={onCancel} {...state} />
      {dialog}
    </Card>
  )
}

/** The graph as JSON next to the drawing, checked while it is written. */
function Editor({
  record,
  isPending,
  error,
  onSubmit,
  onCancel,
}: {
  record?: Orchestration
  isPending: boolean
  error: unknown
  onSubmit: (change: Values) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  // The text of an earlier record would take changes back that others made since.
  const draft = useDraft(`orchestration ${record?.updated_at ?? ''}`, {
    name: record?.name ?? '',
    description: record?.description ?? '',
    label: '',
    json: textOf(record ? definitionOf(record) : EXAMPLE),
  })
  const { name, description, label, json } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const markSent = useSent(draft, { isPending, error })
  const [selected, setSelected] = useState<string | null>(null)
  const parsed = useMemo(() => parseObject(json), [json])
  const [settled] = useDebouncedValue(json, PAUSE_MS)
  // Invalid JSON leaves the last drawing unchanged.
  const [drawn, setDrawn] = useState(parsed as Partial<Definition>)
  if (parsed && parsed !== drawn && textOf(parsed) !== textOf(drawn)) setDrawn(parsed as Partial<Definition>)
  const { findings, error: invalid } = useFindings(projectId, parseObject(settled))
  const graph = useMemo(() => definitionGraph(drawn, findings), [drawn, findings])
  const submit = () => {
    if (!parsed || isPending) return
    const given: Values = { name: name.trim(), description: description.trim() || null, ...parsed }
    const before = (record ?? {}) as Values
    // A field that was taken out of the JSON is emptied.
    for (const field of FIELDS) if (before[field] != null && !(field in parsed)) given[field] = null
    const change = Object.fromEntries(
      Object.entries(given).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(before[key] ?? null)),
    )
    markSent()
    onSubmit({ ...change, ...(label.trim() ? { version_label: label.trim() } : {}) })
  }
  /** Chooses a node, and selects its text. */
  const select = (id: string) => {
    setSelected(id)
    const input = document.getElementById('definition') as HTMLTextAreaElement | null
    const at = json.search(new RegExp(`"id"\\s*:\\s*"${id}"`))
    if (!input || at < 0) return
    input.focus({ preventScroll: true })
    input.setSelectionRange(at, json.indexOf('\n', at))
    // The line is brought into view: a text area does not do that by itself.
    const line = json.slice(0, at).split('\n').length
    input.scrollTop = (input.scrollHeight * line) / json.split('\n').length - input.clientHeight / 2
  }
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        submit()
      }}
    >
      <Stack gap="md">
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
        <SimpleGrid cols={{ base: 1, lg: 2 }}>
          <JsonInput
            id="definition"
            label={strings.orchestrations.json}
            description={strings.orchestrations.jsonHelp}
            error={parsed ? null : strings.form.notObject}
            value={json}
            onChange={json => set({ json })}
            rows={28}
            classNames={{ input: 'mono' }}
          />
          <Stack gap="sm">
            <Group gap="sm" role="status" mih={24}>
              <Text size="sm" fw={600}>
                {strings.orchestrations.found(findings.problems.length, findings.warnings.length)}
              </Text>
            </Group>
            <GraphPanel
              label={strings.runs.graph}
              graph={graph}
              selected={selected}
              onSelect={select}
              isBare
              height={findings.problems.length + findings.warnings.length > 0 ? 400 : 560}
            />
            {Boolean(invalid) && <FailureAlert error={invalid} />}
            <FindingList findings={findings} definition={drawn} onSelect={select} />
          </Stack>
        </SimpleGrid>
        <SubmitRow
          label={record ? strings.save : strings.create}
          isPending={isPending}
          error={error}
          disabled={!parsed || !name.trim()}
          onCancel={() => {
            draft.forget()
            onCancel()
          }}
        />
      </Stack>
    </form>
  )
}
