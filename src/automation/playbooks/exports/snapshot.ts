import type { z } from 'zod'
import type { Omission, SUBJECT_TYPES } from './model.ts'

/** Record as presented by its GET operation. */
export type PresentedRecord = Record<string, unknown>

/** Step of an execution. Further fields of the record appear only in the JSON format. */
export type ExportedStep = PresentedRecord & {
  key: string
  title: string
  type: string
  status: string
}

/** Execution with its steps in definition order and its pinned definition. */
export type ExportedExecution = PresentedRecord & {
  id: string
  steps: readonly ExportedStep[]
  definition: PresentedRecord
}

/** Names of the lists of linked records by link type. */
export const LINKED = {
  approval: 'approvals',
  exception: 'exceptions',
  task: 'tasks',
  session: 'sessions',
  conversation: 'conversations',
  document: 'documents',
  file: 'files',
  generation: 'generations',
  orchestration_run: 'orchestration_runs',
  case: 'cases',
} as const
type LinkedList = (typeof LINKED)[keyof typeof LINKED]

/** Contents of an export, read in one database snapshot; the source of every format. */
export type CaseSnapshot = {
  export_version: 1
  generated_at: string
  subject_type: (typeof SUBJECT_TYPES)[number]
  case: PresentedRecord
  executions: readonly ExportedExecution[]
  timeline: readonly PresentedRecord[]
  evidence: readonly PresentedRecord[]
  links: readonly PresentedRecord[]
  omitted: readonly z.output<typeof Omission>[]
} & Record<LinkedList, readonly PresentedRecord[]>
