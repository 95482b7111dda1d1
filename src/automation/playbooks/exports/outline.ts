import { isObject } from '#core/base/exact-json.ts'
import {
  type CaseSnapshot,
  type ExportedExecution,
  type ExportedStep,
  LINKED,
  type PresentedRecord,
} from './snapshot.ts'

// Outline of an export, independent of the format. Record text and label text are distinct types: renderers escape
// record text.

/** Single-line record text, an id or hash, a URL, or nothing. */
export type Value = string | { code: string } | { url: string } | null

export type OutlineStep = { title: string; blocks: readonly OutlineBlock[] }

export type OutlineBlock =
  | { heading: string; level: 1 | 2 | 3 }
  /** Two columns: label and value. */
  | { facts: readonly (readonly [string, Value])[] }
  | { head: readonly string[]; rows: readonly (readonly Value[])[] }
  /** Multi-line text of a record. */
  | { text: string }
  /** JSON of a record. */
  | { data: unknown }
  /** Fixed label text. */
  | { note: string }
  | { steps: readonly OutlineStep[] }

/** Returns a value of a record in one line. */
const line = (value: unknown): Value => {
  if (value === null || value === undefined || value === '') return null
  return typeof value === 'string' ? value : JSON.stringify(value)
}
const code = (value: unknown): Value => (typeof value === 'string' && value !== '' ? { code: value } : null)

/** Returns a principal `{ kind, id }` in one line. */
const principalLine = (value: unknown): Value => (isObject(value) ? `${value.kind} ${value.id}` : line(value))

const subjectOf = (value: unknown): Value =>
  isObject(value) ? [value.label, `${value.type} ${value.id}`].filter(Boolean).join(', ') : null

/** Returns a block of the facts that have a value. */
const facts = (pairs: readonly (readonly [string, Value])[]): OutlineBlock[] => {
  const present = pairs.filter(([, value]) => value !== null)
  return present.length > 0 ? [{ facts: present }] : []
}

/** Returns a value of a record as text or JSON; nothing for an empty value. */
function content(value: unknown): OutlineBlock[] {
  if (value === null || value === undefined || value === '') return []
  if (typeof value === 'string') return [{ text: value }]
  return isObject(value) && Object.keys(value).length === 0 ? [] : [{ data: value }]
}

const labelledBlocks = (label: string, value: unknown): OutlineBlock[] => {
  const blocks = content(value)
  return blocks.length > 0 ? [{ note: label }, ...blocks] : []
}

/** Returns time and reason of the withdrawal of evidence; null if it was not withdrawn. */
const withdrawal = (piece: PresentedRecord): Value =>
  piece.withdrawn_at ? `${piece.withdrawn_at}: ${piece.withdrawn_reason ?? ''}` : null

const stepBlocks = (
  step: ExportedStep,
  instructions: unknown,
  evidence: readonly PresentedRecord[],
): OutlineBlock[] => [
  ...labelledBlocks('Instructions', instructions),
  ...facts([
    ['Status', step.status],
    ['Type', step.type],
    ['Assignee', line(step.assignee)],
    ['Completed by', principalLine(step.completed_by)],
    ['Started', line(step.started_at)],
    ['Completed', line(step.completed_at)],
    ['Due', line(step.due_at)],
    ['Approval', code(step.approval_id)],
    ['Note', line(step.note)],
  ]),
  ...labelledBlocks('Result', step.output),
  ...labelledBlocks('Error', step.error),
  ...(evidence.length > 0
    ? [
        {
          head: ['Evidence', 'Kind', 'SHA-256'],
          rows: evidence.map(piece => [line(piece.name), line(piece.kind), code(piece.sha256)]),
        },
      ]
    : []),
]

function executionBlocks(execution: ExportedExecution, evidence: readonly PresentedRecord[]): OutlineBlock[] {
  const definitions = Array.isArray(execution.definition.steps) ? (execution.definition.steps as unknown[]) : []
  const instructionsOf = (key: string): unknown => {
    const step = definitions.filter(isObject).find(each => each.key === key)
    return step?.instructions ?? step?.description
  }
  const own = evidence.filter(piece => piece.playbook_execution_id === execution.id)
  return [
    { heading: `Execution of ${line(execution.playbook_name) ?? 'a playbook'}`, level: 2 },
    ...facts([
      ['Id', { code: execution.id }],
      ['Version', line(execution.playbook_version)],
      ['Status', line(execution.status)],
      ['Outcome', line(execution.outcome)],
      ['Started by', principalLine(execution.started_by)],
      ['Started', line(execution.started_at)],
      ['Completed', line(execution.completed_at)],
    ]),
    ...labelledBlocks('Input', execution.input),
    ...labelledBlocks('Error', execution.error),
    {
      steps: execution.steps.map(step => ({
        title: step.title,
        blocks: stepBlocks(
          step,
          instructionsOf(step.key),
          own.filter(piece => piece.step_key === step.key),
        ),
      })),
    },
  ]
}

const timelineBlocks = (timeline: readonly PresentedRecord[]): OutlineBlock[] => [
  { heading: 'Timeline', level: 2 },
  timeline.length === 0
    ? { note: 'Nothing.' }
    : {
        head: ['When', 'What', 'Who', 'Step', 'Details'],
        rows: timeline.map(entry => [
          line(entry.created_at),
          line(entry.kind),
          [entry.principal_kind, entry.principal_id].filter(Boolean).join(' '),
          line(entry.step_key),
          isObject(entry.data) && Object.keys(entry.data).length > 0 ? line(entry.data) : null,
        ]),
      },
]

const evidenceBlocks = (evidence: readonly PresentedRecord[]): OutlineBlock[] => [
  { heading: 'Evidence', level: 2 },
  ...(evidence.length === 0 ? [{ note: 'None.' }] : []),
  ...evidence.flatMap((piece): OutlineBlock[] => [
    { heading: String(piece.name), level: 3 },
    ...facts([
      ['Id', code(piece.id)],
      ['Kind', line(piece.kind)],
      ['SHA-256', code(piece.sha256)],
      ['Captured by', principalLine(piece.captured_by)],
      ['Captured', line(piece.created_at)],
      ['Execution', code(piece.playbook_execution_id)],
      ['Step', line(piece.step_key)],
      ['File', code(piece.file_id)],
      ['Address', typeof piece.url === 'string' ? { url: piece.url } : null],
      ['Withdrawn', withdrawal(piece)],
    ]),
    ...content(piece.content),
  ]),
]

/** Returns the display name of a linked record. */
const nameOf = ({ title, name, filename, path, kind }: PresentedRecord): Value =>
  line(title ?? name ?? path ?? filename ?? kind)

function linkBlocks(snapshot: CaseSnapshot): OutlineBlock[] {
  if (snapshot.links.length === 0) return []
  const rows = snapshot.links.map(({ type, target_id }) => {
    const list = snapshot[LINKED[type as keyof typeof LINKED]] ?? []
    const record = list.find(({ id }) => id === target_id)
    return [line(type), code(target_id), record ? nameOf(record) : null, record ? line(record.status) : null]
  })
  return [
    { heading: 'Links', level: 2 },
    { head: ['Type', 'Id', 'Name', 'Status'], rows },
  ]
}

export const titleOf = ({ case: about }: CaseSnapshot): string =>
  `Case ${about.number}: ${about.title} (${about.status})`

/** Returns the blocks of an export in reading order. */
export function outlineCase(snapshot: CaseSnapshot): OutlineBlock[] {
  const { case: about, executions, evidence, timeline, omitted } = snapshot
  const { fields, metadata, tags } = about
  return [
    { heading: titleOf(snapshot), level: 1 },
    ...facts([
      ['Id', code(about.id)],
      ['Status', line(about.status)],
      ['Priority', line(about.priority)],
      ['Subject', subjectOf(about.subject)],
      ['External id', line(about.external_id)],
      ['Assignee', line(about.assignee)],
      ['Actor', code(about.actor_id)],
      ['Due', line(about.due_at)],
      ['Outcome', line(about.outcome)],
      ['Outcome note', line(about.outcome_note)],
      ['Opened by', principalLine(about.created_by)],
      ['Opened', line(about.created_at)],
      ['Resolved', line(about.resolved_at)],
      ['Closed', line(about.closed_at)],
      ['Exported', snapshot.generated_at],
    ]),
    ...labelledBlocks('Description', about.description),
    ...labelledBlocks('Fields', fields),
    ...labelledBlocks('Metadata', metadata),
    ...labelledBlocks('Tags', tags),
    ...executions.flatMap(execution => executionBlocks(execution, evidence)),
    ...timelineBlocks(timeline),
    ...evidenceBlocks(evidence),
    ...linkBlocks(snapshot),
    ...(omitted.length > 0
      ? [
          { heading: 'Omitted', level: 2 } as const,
          { note: 'Records that the requester could not read when this export was built.' },
          {
            head: ['Type', 'Id', 'Reason'],
            rows: omitted.map(({ type, id, reason }) => [type, { code: id }, reason.replace('_', ' ')]),
          },
        ]
      : []),
  ]
}
