import type { z } from 'zod'
import type { Omission, SUBJECT_TYPES } from './model.ts'

/** A record as its GET answers it. */
export type PresentedRecord = Record<string, unknown>

/** A step of an execution, as exports show it. What else its record says goes into the JSON as it is. */
export type ExportedStep = PresentedRecord & {
  key: string
  title: string
  type: string
  status: string
}

/** An execution with its steps in the order of their definition, and the definition that it is pinned to. */
export type ExportedExecution = PresentedRecord & {
  id: string
  steps: readonly ExportedStep[]
  definition: PresentedRecord
}

/** The lists of linked records, by what links call their types. */
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

/** All that an export shows, as it was at one moment: what every format is made of. */
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
