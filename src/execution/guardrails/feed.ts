import type { Outgoing } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'

/** Something that a person should look at. Occurrences with the same `dedup_key` are one. */
export type ExceptionDraft = {
  project_id: string
  kind: 'guardrail_tripwire' | 'approval_expired'
  title: string
  detail: Record<string, unknown>
  dedup_key: string | null
  orchestration_run_id?: string | null
  node_id?: string | null
  agent_id?: string | null
  guardrail_version?: string | null
}

/** Where exceptions are filed, beside what happened: it never throws. */
export const exceptionDesk = extensionPoint<(services: Services, draft: ExceptionDraft) => void>('exception desk')

export const reportException = (services: Services, draft: ExceptionDraft): void =>
  exceptionDesk.only()?.(services, draft)

/** Something that was done, as a line of the feed of a project. */
export type ActivityDraft = {
  project_id: string
  kind: 'action_executed' | 'approval_created' | 'approval_resolved'
  summary: string
  detail: Record<string, unknown>
  agent_id: string | null
  generation_id: string | null
  ref_id: string | null
}

/** Where activity is noted, with the change that it is about. */
export const activityFeed = extensionPoint<(outgoing: Outgoing, draft: ActivityDraft) => void>('activity feed')

export const noteActivity = (outgoing: Outgoing, draft: ActivityDraft): void => activityFeed.only()?.(outgoing, draft)
